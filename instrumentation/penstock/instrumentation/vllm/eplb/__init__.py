"""Observes vLLM's expert-parallel load balancer (EPLB)."""

from __future__ import annotations

from penstock.instrumentation.vllm.eplb.hook import EplbHook

__all__ = [
    "EplbHook",
]
