#!/usr/bin/env bash
# Builds an environment with NVIDIA Dynamo over the one with the vLLM that it ships (setup-version.sh), in
# .venv-versions/dynamo-<version>: its two packages, and what they want besides or in other versions. Does nothing when it is
# up to date.
# DYNAMO: which version; VLLM: the one that it ships. PENSTOCK_VENV: the environment below both.
set -euo pipefail
cd "$(dirname "$0")/.."

dynamo=${DYNAMO:-1.6.1}
export VLLM=${VLLM:-0.31.0}
# What setup-version.sh builds is below, whatever its caller named.
unset PENSTOCK_VENV_VERSION
base=.venv-versions/$VLLM
venv=.venv-versions/dynamo-$dynamo
stamp=$venv/.penstock-setup
log=$venv/setup.log

fail() {
    echo "setup-dynamo: $*" >&2
    exit 1
}

must() {
    local title=$1
    shift
    echo "setup-dynamo: $title …"
    "$@" >>"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        fail "$title: failed; all of its output is in $log"
    }
}

scripts/setup-version.sh
packages=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
wanted=$(cat scripts/setup-dynamo.sh scripts/torchvision.sh scripts/unmet_needs.py "$base/.penstock-setup" \
    <(echo "$dynamo $packages") | sha256sum | cut -d ' ' -f 1)
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
# Its own packages come first, then those of vLLM's environment, which names the one below.
echo "import site; site.addsitedir('$packages')" >"$site/penstock-base.pth"
ln -sf "$(realpath "$base/bin/agentctl")" "$(realpath "$base/bin/penstock-agent")" "$venv/bin/"
# Without its extra "vllm": that is the build for CUDA. vLLM and NIXL are those below.
must "Dynamo $dynamo (79 MB)" "${pip[@]}" install --ignore-installed --no-deps --no-compile \
    "ai-dynamo==$dynamo" "ai-dynamo-runtime==$dynamo"
# Its worker imports it (multimodal_utils/models/qwen.py).
must "torchvision" scripts/torchvision.sh "$base/bin/python" "$site"
names=(ai-dynamo ai-dynamo-runtime)
for _ in 1 2 3; do
    # aisimulate forecasts performance for the planner and the router; the package index has an empty package of that name.
    mapfile -t needs < <("$venv/bin/python" scripts/unmet_needs.py "${names[@]}" | grep -v '^aisimulate')
    ((${#needs[@]})) || break
    must "what it wants in other versions: ${needs[*]}" "${pip[@]}" install --ignore-installed --no-deps --no-compile \
        "${needs[@]}"
    mapfile -t -O "${#names[@]}" names < <(printf '%s\n' "${needs[@]}" | sed 's/[^A-Za-z0-9._-].*//')
done
must "a look whether it can be imported" "$venv/bin/python" -c "
import dynamo.vllm.main, dynamo.frontend.main, nixl, vllm
assert vllm.__version__.split('+')[0] == '$VLLM', vllm.__version__
"

echo "$wanted" >"$stamp"
echo "setup-dynamo: done in $((SECONDS - began)) s"
