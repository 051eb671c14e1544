#!/usr/bin/env bash
# What checks the page's scripts, of npm at the versions below, into .cache/page-tools: TypeScript reads their types, axe-core
# looks for what a screen reader cannot use. Does nothing when it is up to date. Node and npm: Debian's, installed as root.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(typescript@5.9.2 preact@10.29.8 htm@3.1.1 uplot@1.6.32 axe-core@4.14.1)
target=.cache/page-tools
stamp=$target/.versions

if [[ -f $stamp && $(<"$stamp") == "${packages[*]}" ]] && command -v node >/dev/null; then
    exit 0
fi
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "The page's checks need node and npm on PATH; on Debian or Ubuntu: sudo apt-get install nodejs npm" >&2
        exit 1
    fi
    echo "page-tools: Debian's packages nodejs and npm …"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends nodejs npm >/dev/null
fi
echo "page-tools: ${packages[*]} …"
rm -rf "$target"
mkdir -p "$target"
npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$target" "${packages[@]}"
echo "${packages[*]}" >"$stamp"
