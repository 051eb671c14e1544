#!/usr/bin/env bash
# Puts Arize Phoenix, a trace backend of another project, into .cache/trace-backend: an environment of its own, because it
# pins other versions of what .venv has. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

target=.cache/trace-backend
requirement=arize-phoenix==20.26.1

if [[ -x $target/bin/phoenix ]] && "$target/bin/python" -c \
    'import sys; from importlib.metadata import version; name, wanted = sys.argv[1].split("=="); sys.exit(version(name) != wanted)' \
    "$requirement"; then
    exit 0
fi
began=$SECONDS
echo "setup-trace-backend: $requirement (850 MB on disk) …"
rm -rf "$target"
"${PYTHON:-python3.11}" -m venv "$target"
if ! "$target/bin/python" -m pip --disable-pip-version-check --no-input install --quiet "$requirement"; then
    rm -rf "$target"
    exit 1
fi
echo "setup-trace-backend: done in $((SECONDS - began)) s"
