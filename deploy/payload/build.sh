#!/usr/bin/env bash
# Builds the payload into OUTPUT: build.sh OUTPUT [WHEEL]. Without a wheel of Penstock it builds one of this checkout.
# PYTHON: which Python with pip does it. PYTHONS: the versions of Python that engines' images may have.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
output=$(realpath -m "$1")
wheel=${2:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip=("${PYTHON:-python3}" -m pip --disable-pip-version-check --no-input --quiet)
if [[ -z $wheel ]]; then
    "${pip[@]}" wheel --no-deps --wheel-dir "$work" "$here/../.."
    wheel=$(echo "$work"/penstock_vllm-*.whl)
fi
for version in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
    "${pip[@]}" download --no-deps --only-binary :all: --python-version "$version" --dest "$work/fallback" \
        --requirement "$here/requirements.txt"
done
mkdir -p "$(dirname "$output")"
"${PYTHON:-python3}" "$here/build_payload.py" --wheel "$wheel" --fallback "$work/fallback" "$output"
