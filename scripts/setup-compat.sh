#!/usr/bin/env bash
# Builds an environment with the next vLLM's Python code over the one that setup.sh builds: torch and all other packages are
# the latter's. The wheel is the CUDA build (there is no other); only what is read as text is unpacked. The kernels are those
# of the vLLM for CPU below: not the pair that anybody ships, but engines run on it.
# Does nothing when it is up to date. VLLM: which version. PENSTOCK_VENV: the environment below. PENSTOCK_VENV_COMPAT: where.
set -euo pipefail
cd "$(dirname "$0")/.."

vllm=${VLLM:-0.33.0}
base=${PENSTOCK_VENV:-.venv}
venv=${PENSTOCK_VENV_COMPAT:-.venv-compat}
stamp=$venv/.penstock-setup
log=$venv/setup.log

fail() {
    echo "setup-compat: $*" >&2
    exit 1
}

must() {
    local title=$1
    shift
    echo "setup-compat: $title …"
    "$@" >>"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        fail "$title: failed; all of its output is in $log"
    }
}

[[ -x $base/bin/python ]] || fail "there is no environment in $base; run make setup first, or name one with PENSTOCK_VENV=…"
packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
wanted=$(cat scripts/setup-compat.sh scripts/requirements-compat.txt \
    <(echo "$vllm") <("$base/bin/python" --version) <(echo "$packages") | sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
# What takes long, the wheel's code, names no place: it stays where only another environment below, or a move, is new.
unpacked=$venv/.unpacked
wheel="vLLM $vllm by $("$base/bin/python" --version)"
if [[ ! -f $unpacked || $(<"$unpacked") != "$wheel" ]]; then
    rm -rf "$venv"
fi
mkdir -p "$venv"
: >"$log"
download=$(mktemp -d "$venv/download.XXXXXX")
trap 'rm -rf "$download"' EXIT
pip=("$base/bin/python" -m pip --disable-pip-version-check --no-input)

must "an environment in $venv over $base" "$base/bin/python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Its own packages come first, then those of the base, editable ones included. The wheel is no CPU build, so vLLM has to be
# told which platform this is.
cat >"$site/penstock-base.pth" <<PTH
import os, site; os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu"); site.addsitedir("$packages")
PTH
# The agent knows nothing of vLLM: it is the one below.
ln -sf "$(realpath "$base/bin/agentctl")" "$(realpath "$base/bin/penstock-agent")" "$venv/bin/"
if [[ ! -f $unpacked ]]; then
    must "the wheel of vLLM $vllm (hundreds of megabytes)" "${pip[@]}" download --no-deps --no-cache-dir \
        --only-binary :all: --dest "$download" "vllm==$vllm"
    must "its Python code" "$base/bin/python" scripts/unpack_python.py "$download"/vllm-*.whl "$site"
    echo "$wheel" >"$unpacked"
fi
must "the kernels for CPU of the vLLM below" bash -c '
    shopt -s nullglob
    kernels=("$1"/vllm/*.so)
    ((${#kernels[@]})) || { echo "there are none in $1/vllm"; exit 1; }
    ln -sf "${kernels[@]}" "$2/vllm/"' link "$packages" "$site"
must "what it needs besides" "${pip[@]}" --python "$venv/bin/python" install -r scripts/requirements-compat.txt
must "a look whether it can be imported" "$venv/bin/python" -c "
import vllm
assert vllm.__version__ == '$vllm', vllm.__version__
import vllm.v1.core.sched.scheduler
"

echo "$wanted" >"$stamp"
echo "setup-compat: done in $((SECONDS - began)) s"
