#!/usr/bin/env bash
# Builds localhost/penstock/agent:VERSION and localhost/penstock/payload:VERSION with podman; nothing if they are up to
# date. No registry: the base is made from Debian's packages, and the wheels are fetched by this machine's pip, by its
# configuration; the build itself needs no network.
# --name agent, --name payload: print that image's name only. BASE: a base image instead of Debian's packages
# (docker.io/library/python:3.11-slim-bookworm). PYTHON: Python 3.11 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
cache=$PWD/.cache/image
wheels=$cache/wheels
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' proto/penstock/proto/version.py)
name_of() { echo "localhost/penstock/$1:$version"; }
if [[ ${1:-} == --name ]]; then
    name_of "$2"
    exit 0
fi
mkdir -p "$cache"

stage() {
    local began=$SECONDS
    echo "image: $1 …"
    shift
    "$@" >"$cache/log" 2>&1 || {
        tail -n 30 "$cache/log" >&2
        echo "image: failed; all of its output is in $cache/log" >&2
        exit 1
    }
    echo "image: done in $((SECONDS - began)) s"
}

# As python:3.11-slim-bookworm is for the Dockerfile: `python`, `python3`, venv, useradd, CA certificates, libstdc++ (gRPC).
make_base() {
    mmdebstrap --variant=essential --include=passwd,ca-certificates,libstdc++6,python3.11,python3.11-venv \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='for name in python python3; do ln -s /usr/bin/python3.11 "$1/usr/local/bin/$name"; done' \
        bookworm "$cache/base.draft.tar"
    mv "$cache/base.draft.tar" "$cache/base.tar"
    echo "$recipe" >"$cache/base.stamp"
}

get_wheels() {
    rm -rf "$wheels"
    "$python" -m pip wheel --disable-pip-version-check --no-input --wheel-dir "$wheels" \
        --constraint deploy/image/constraints.txt --requirement deploy/image/requirements.txt ".[agent]"
    # Of Penstock itself the build makes its own.
    rm "$wheels"/penstock_vllm-*.whl
    # The payload carries gRPC for each Python that an engine's image may have.
    local version
    for version in 3.11 3.12 3.13 3.14; do
        "$python" -m pip download --disable-pip-version-check --no-input --no-deps --only-binary :all: \
            --python-version "$version" --dest "$wheels" --requirement deploy/payload/requirements.txt
    done
    echo "$wanted" >"$wheels/stamp"
}

build() {
    # chroot: without namespaces, so it works in a container, too. Layers would be copies where overlayfs is missing.
    podman build --layers=false --isolation=chroot --network=host --volume "$wheels:/wheels:ro" --tag "$(name_of "$1")" \
        --build-arg BASE="$base" --build-arg VERSION="$version" --build-arg REVISION="$revision" \
        --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --target "$1" .
}

if [[ -z ${BASE:-} ]]; then
    base=localhost/penstock/base:bookworm
    recipe=$(declare -f make_base | sha256sum | cut -d ' ' -f 1)
    if [[ ! -f $cache/base.tar || $(cat "$cache/base.stamp" 2>/dev/null) != "$recipe" ]]; then
        stage "a base from Debian's packages" make_base
        stage "import of the base" podman import "$cache/base.tar" "$base"
    fi
    podman image exists "$base" || stage "import of the base" podman import "$cache/base.tar" "$base"
else
    base=$BASE
fi
wanted=$(cat deploy/image/*.txt deploy/payload/requirements.txt scripts/image.sh pyproject.toml <("$python" --version) |
    sha256sum | cut -d ' ' -f 1)
[[ $(cat "$wheels/stamp" 2>/dev/null) == "$wanted" ]] || stage "wheels" get_wheels

revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
# What .dockerignore lets in, and what else decides about the images.
sources=$(find Dockerfile deploy/image deploy/payload agent instrumentation proto README.md LICENSE -type f \
    ! -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum)
made_from=$(echo "$sources $wanted $revision $base ${recipe:-}" | sha256sum | cut -d ' ' -f 1)
for target in agent payload; do
    image=$(name_of "$target")
    # With the image's id: another checkout may have given the name to its own.
    id() { podman image inspect --format '{{.Id}}' "$image" 2>/dev/null || true; }
    if [[ $(cat "$cache/$target.stamp" 2>/dev/null) != "$made_from $(id)" ]]; then
        stage "$image over $base" build "$target"
        echo "$made_from $(id)" >"$cache/$target.stamp"
    fi
    podman image inspect --format \
        "image: $image, {{.Size}} bytes, {{.Os}}/{{.Architecture}}, user {{.User}}" "$image"
done
