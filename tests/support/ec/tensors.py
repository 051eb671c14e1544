"""Encoder outputs, for processes that need no more than that."""

from __future__ import annotations

import torch
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

HIDDEN = 256
MODEL = protocol.model_digest("tiny", HIDDEN)


def tensor(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return an encoder output."""
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed)).to(dtype)
