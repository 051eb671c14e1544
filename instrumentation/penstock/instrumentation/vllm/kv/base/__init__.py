"""Observes KV connectors through vLLM's base interface, with adapters for connectors that report more."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.base.hook import KvWorkerHook, KvWorkers
from penstock.instrumentation.vllm.kv.base.mooncake import MooncakeHook
from penstock.instrumentation.vllm.kv.base.step_loads import KvStepLoads
from penstock.instrumentation.vllm.kv.base.transfers import KvTransfers

__all__ = [
    "KvStepLoads",
    "KvTransfers",
    "KvWorkerHook",
    "KvWorkers",
    "MooncakeHook",
]
