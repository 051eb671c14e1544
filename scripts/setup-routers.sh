#!/usr/bin/env bash
# Puts the routers of tests/routers into .cache/routers: an environment of its own, because they pin other versions of what
# .venv has. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

target=.cache/routers
requirements=scripts/requirements-routers.txt
stamp=$target/.stamp
python=${PYTHON:-python3.11}

wanted=$(cat "$0" "$requirements" <("$python" --version) | sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
echo "setup-routers: vllm-router, sglang-router and LiteLLM (100 MB to download) …"
rm -rf "$target"
"$python" -m venv "$target"
if ! "$target/bin/python" -m pip --disable-pip-version-check --no-input install --quiet -r "$requirements"; then
    rm -rf "$target"
    exit 1
fi
echo "$wanted" >"$stamp"
echo "setup-routers: done in $((SECONDS - began)) s"
