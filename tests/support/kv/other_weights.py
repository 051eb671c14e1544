"""A copy of the tiny model whose weights can be exchanged: one path and one configuration, so that every handshake works."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from demo.common.model import tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def copied_model(cache: Path) -> Path:
    """Return a fresh copy of the tiny model below *cache*: a variant's model."""
    copy = cache / "tiny-llama-copied"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(tiny_model(cache), copy)
    return copy


@contextmanager
def other_weights(model: Path) -> Iterator[None]:
    """Let who loads *model* meanwhile have other weights of the same shapes."""
    for file in model.glob("*.safetensors"):
        tensors = load_file(file)
        turned = {name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}
        save_file(turned, file, metadata={"format": "pt"})
    yield
    for file in model.glob("*.safetensors"):
        turned = {name: tensor.flip(0).contiguous() for name, tensor in load_file(file).items()}
        save_file(turned, file, metadata={"format": "pt"})
