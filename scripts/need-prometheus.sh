#!/usr/bin/env bash
# The tests run a real Prometheus and promtool (Debian's package): looks for them, installs them as root.
set -euo pipefail

have() { command -v promtool >/dev/null && command -v prometheus >/dev/null; }

if have; then
    exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The tests need prometheus and promtool on PATH; on Debian or Ubuntu: sudo apt-get install prometheus" >&2
    exit 1
fi
echo "test: Debian's prometheus package …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Only its programs are wanted: with this the package's service is not started.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get install -qq -y --no-install-recommends prometheus >/dev/null
have || {
    echo "The package prometheus was installed, but prometheus or promtool is not on PATH ($PATH)" >&2
    exit 1
}
