#!/usr/bin/env bash
# The tests run a real nats-server (Debian's package): looks for it, installs it as root.
set -euo pipefail

have() { command -v nats-server >/dev/null; }

if have; then
    exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The tests need nats-server on PATH; on Debian or Ubuntu: sudo apt-get install nats-server" >&2
    exit 1
fi
echo "test: Debian's nats-server package …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Only its programs are wanted: with this the package's service is not started.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get install -qq -y --no-install-recommends nats-server >/dev/null
have || {
    echo "The package nats-server was installed, but nats-server is not on PATH ($PATH)" >&2
    exit 1
}
