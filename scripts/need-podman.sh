#!/usr/bin/env bash
# Building and running the image takes podman, runc and mmdebstrap: looks for them, installs Debian's as root.
set -euo pipefail

have() { command -v podman && command -v runc && command -v mmdebstrap; } >/dev/null

have && exit 0
packages="podman runc mmdebstrap"
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The image needs $packages on PATH; on Debian or Ubuntu: sudo apt-get install $packages uidmap" >&2
    exit 1
fi
echo "image: Debian's packages $packages …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -qq -y --no-install-recommends $packages >/dev/null
