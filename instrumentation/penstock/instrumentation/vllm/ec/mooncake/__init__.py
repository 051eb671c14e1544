"""vLLM's ``ECMooncakeConnector``: pushes of encoder outputs, on both sides, and what becomes of those that fail."""

from __future__ import annotations

from penstock.instrumentation.vllm.ec.mooncake.hook import MooncakeEc

__all__ = [
    "MooncakeEc",
]
