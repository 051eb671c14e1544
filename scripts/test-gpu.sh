#!/usr/bin/env bash
# The checks on a GPU (tests/gpu), and docs/gpu.md from their results; one sentence where there is no GPU. Arguments are
# pytest's. PYTHON=…: a Python that has all that scripts/setup-gpu.sh installs.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "test-gpu: skipped. No NVIDIA GPU is here: nvidia-smi finds none."
    exit 0
fi
scripts/setup-gpu.sh
python=${PYTHON:-${PENSTOCK_VENV_GPU:-.venv-gpu}/bin/python}
PENSTOCK_GPU_PAGE=docs/gpu.md exec "$python" -m pytest -s "$@" tests/gpu
