#!/usr/bin/env bash
# Building and running the images takes podman, runc and mmdebstrap: looks for them, installs as root Debian's that are
# missing (not all three: Docker's packages bring a runc, and Debian's would replace them).
set -euo pipefail

missing=()
for program in podman runc mmdebstrap; do
    command -v "$program" >/dev/null || missing+=("$program")
done
((${#missing[@]})) || exit 0
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The images need ${missing[*]} on PATH; on Debian or Ubuntu: sudo apt-get install ${missing[*]} uidmap" >&2
    exit 1
fi
echo "image: Debian's packages ${missing[*]} …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
