#!/usr/bin/env bash
# Generates the code of the wire contract; with --check, compares instead of writing.
# The generator needs an older protobuf than vLLM, hence an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-proto
requirements=scripts/requirements-proto.txt
if ! cmp -s "$requirements" "$venv/requirements.txt"; then
    echo "proto: the generator, in $venv …"
    "${PYTHON:-.venv/bin/python}" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
    cp "$requirements" "$venv/requirements.txt"
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
(cd proto && "../$venv/bin/python" -W ignore -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" \
    --grpc_python_out="$out" penstock/proto/v1/*.proto)
# Files without a service have nothing to say about gRPC.
for proto in proto/penstock/proto/v1/*.proto; do
    name=$(basename "$proto" .proto)
    grep -q '^service ' "$proto" || rm "$out/penstock/proto/v1/${name}_pb2_grpc.py"
done

committed=proto/penstock/proto/v1
if [[ ${1:-} == --check ]]; then
    if ! diff -r -u --exclude='*.proto' --exclude='__init__.py' --exclude='__pycache__' \
        "$committed" "$out/penstock/proto/v1"; then
        echo "proto: the generated code in $committed is not what the .proto files say; run: make proto" >&2
        exit 1
    fi
    echo "proto: the generated code is up to date"
else
    cp "$out/penstock/proto/v1/"* "$committed/"
    echo "proto: written to $committed"
fi
