#!/usr/bin/env bash
# The tests of routers run a real HAProxy (Debian's package): looks for it, installs it as root.
set -euo pipefail

have() { command -v haproxy >/dev/null; }

if have; then
    exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The tests need haproxy on PATH; on Debian or Ubuntu: sudo apt-get install haproxy" >&2
    exit 1
fi
echo "setup: Debian's haproxy package …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Only its programs are wanted: with this the package's service is not started.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get install -qq -y --no-install-recommends haproxy >/dev/null
have || {
    echo "The package haproxy was installed, but haproxy is not on PATH ($PATH)" >&2
    exit 1
}
