"""Observes KV connectors through vLLM's base interface, with adapters for connectors that report more."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.base.hook import KvWorkerHook, KvWorkers
from penstock.instrumentation.vllm.kv.base.lmcache import LMCacheLookups, uses_server
from penstock.instrumentation.vllm.kv.base.mooncake import MooncakeHook
from penstock.instrumentation.vllm.kv.base.transfers import KvStepLoads, KvTransfers

__all__ = [
    "KvStepLoads",
    "KvTransfers",
    "KvWorkerHook",
    "KvWorkers",
    "LMCacheLookups",
    "MooncakeHook",
    "uses_server",
]
