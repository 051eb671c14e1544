#!/usr/bin/env bash
# Builds the agent's image as localhost/penstock/agent:VERSION with podman. No registry: the base is made from Debian's
# packages, and the wheels are fetched by this machine's pip, by its configuration; the build itself needs no network.
# --name: print the image's name only. BASE: a base image instead of Debian's packages (docker.io/library/python:3.11-slim-bookworm). PYTHON: Python 3.11 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
cache=$PWD/.cache/image
wheels=$cache/wheels
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' proto/penstock/proto/version.py)
image=localhost/penstock/agent:$version
if [[ ${1:-} == --name ]]; then
    echo "$image"
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

# As python:3.11-slim-bookworm is for the Dockerfile: `python`, venv, useradd, CA certificates, libstdc++ (gRPC).
make_base() {
    mmdebstrap --variant=essential --include=passwd,ca-certificates,libstdc++6,python3.11,python3.11-venv \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='ln -s /usr/bin/python3.11 "$1/usr/local/bin/python"' bookworm "$cache/base.draft.tar"
    mv "$cache/base.draft.tar" "$cache/base.tar"
    echo "$recipe" >"$cache/base.stamp"
}

get_wheels() {
    rm -rf "$wheels"
    "$python" -m pip wheel --disable-pip-version-check --no-input --wheel-dir "$wheels" \
        --constraint deploy/image/constraints.txt --requirement deploy/image/requirements.txt ".[agent]"
    # Of Penstock itself the build makes its own.
    rm "$wheels"/penstock-*.whl
    echo "$wanted" >"$wheels/stamp"
}

build() {
    # chroot: without namespaces, so it works in a container, too. Layers would be copies where overlayfs is missing.
    podman build --layers=false --isolation=chroot --network=host --volume "$wheels:/wheels:ro" --tag "$image" \
        --build-arg BASE="$base" --build-arg VERSION="$version" \
        --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
        --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --target agent .
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
wanted=$(cat deploy/image/*.txt pyproject.toml <("$python" --version) | sha256sum | cut -d ' ' -f 1)
[[ $(cat "$wheels/stamp" 2>/dev/null) == "$wanted" ]] || stage "wheels" get_wheels

stage "$image over $base" build
podman image inspect --format "image: {{.Size}} bytes, {{.Os}}/{{.Architecture}}, user {{.User}}" "$image"
