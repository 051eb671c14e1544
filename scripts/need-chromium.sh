#!/usr/bin/env bash
# The tests of the page run a real Chromium (Debian's, else Google's): looks for it and its driver, installs them as root.
set -euo pipefail

have() { { command -v chromium || command -v google-chrome; } >/dev/null && command -v chromedriver >/dev/null; }

if have; then
    exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The page's tests need chromium and chromedriver on PATH; on Debian: sudo apt-get install chromium chromium-driver" >&2
    exit 1
fi
echo "page: Debian's packages chromium and chromium-driver …"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null
have || {
    echo "Debian's packages were installed, but chromium or chromedriver is not on PATH ($PATH)" >&2
    exit 1
}
