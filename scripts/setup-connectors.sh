#!/usr/bin/env bash
# Puts what the tests of Mooncake and LMCache need into .cache/connectors, beside the environment and not into it:
# LMCache pins older versions of what the environment has. Does nothing when it is up to date. Needs `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${PENSTOCK_VENV:-.venv}
target=.cache/connectors
requirements=scripts/requirements-connectors.txt
stamp=$target/.stamp

wanted=$(cat "$0" "$requirements" <("$venv/bin/python" --version) | sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
mkdir -p .cache
draft=$(mktemp -d .cache/connectors.XXXXXX)
trap 'rm -rf "$draft"' EXIT
echo "setup-connectors: Mooncake and LMCache (64 MB to download) …"
"$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps --no-compile \
    --target "$draft" -r "$requirements"

# Mooncake links against RDMA's libraries even where it moves over TCP. NIXL's wheel has them, under names of its own.
mkdir "$draft/lib"
nixl=$("$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("nixl").submodule_search_locations[0])')
libraries=("$nixl"/../nixl_cu1?.libs)
for name in libibverbs libmlx5; do
    cp "${libraries[0]}/$name"-*.so.* "$draft/lib/$name.so.1"
done
cp "${libraries[0]}"/libnl-3-* "${libraries[0]}"/libnl-route-3-* "$draft/lib/"
# Its package would hide others of NVIDIA's.
mv "$draft/nvidia/cuda_runtime/lib/libcudart.so.12" "$draft/lib/"
rm -r "$draft/nvidia"

if ! PYTHONPATH=$draft LD_LIBRARY_PATH=$draft/lib "$venv/bin/python" -c \
    'import mooncake.engine, mooncake.store, lmcache.integration.vllm.vllm_multi_process_adapter' >"$draft/log" 2>&1; then
    tail -n 5 "$draft/log" >&2
    echo "setup-connectors: the packages cannot be imported; Debian's libcurl4 and libnuma1 are needed as well" >&2
    exit 1
fi
rm "$draft/log"
echo "$wanted" >"$draft/.stamp"
chmod 755 "$draft"
rm -rf "$target"
mv "$draft" "$target"
trap - EXIT
echo "setup-connectors: done in $((SECONDS - began)) s"
