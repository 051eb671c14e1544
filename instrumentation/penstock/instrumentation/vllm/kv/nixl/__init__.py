"""Observes and controls vLLM's NIXL workers: handshakes, transfers, leases, cancellations."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.nixl import compatibility
from penstock.instrumentation.vllm.kv.nixl.hook import NixlHook, NixlWorkers
from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver
from penstock.instrumentation.vllm.kv.nixl.upstream_counts import UpstreamCounts

__all__ = [
    "NixlHook",
    "NixlObserver",
    "NixlWorkers",
    "UpstreamCounts",
    "compatibility",
]
