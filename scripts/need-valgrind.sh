#!/usr/bin/env bash
# The benchmark "instructions" counts with valgrind and strace: looks for them and for valgrind's headers, installs them as root.
set -euo pipefail

have() {
    command -v valgrind >/dev/null && command -v strace >/dev/null && [[ -f /usr/include/valgrind/callgrind.h ]]
}

if have; then
    exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The benchmark needs valgrind and strace on PATH; on Debian or Ubuntu: sudo apt-get install valgrind strace" >&2
    exit 1
fi
echo "bench: Debian's packages valgrind and strace …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends valgrind strace >/dev/null
have || {
    echo "The packages were installed, but valgrind, its headers or strace is missing ($PATH)" >&2
    exit 1
}
