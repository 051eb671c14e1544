"""vLLM's expert balancer, observed."""

from __future__ import annotations

from penstock.instrumentation.vllm.eplb.hook import EplbHook

__all__ = [
    "EplbHook",
]
