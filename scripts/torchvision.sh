#!/usr/bin/env bash
# Puts torchvision into a folder: torchvision.sh PYTHON FOLDER. vLLM's models of pictures import it, of the release that goes
# with PyTorch 2.13. Where no build for CPU is to be had, the package index has one for CUDA, whose kernels do not load here:
# its Python code is used, and declares what they would.
set -euo pipefail
torchvision=0.28.0
torch_index=https://download.pytorch.org/whl/cpu
python=$1 folder=$2

install() {
    "$python" -m pip --disable-pip-version-check --no-input install --quiet --upgrade --no-deps --no-compile \
        --target "$folder" "$@"
}

if ! install "torchvision==$torchvision+cpu" 2>/dev/null && ! install "torchvision==$torchvision+cpu" --index-url "$torch_index" \
    2>/dev/null; then
    install "torchvision==$torchvision"
    rm "$folder"/torchvision/*.so
    cat >>"$folder/torchvision/extension.py" <<'END'

_declared = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
END
fi
