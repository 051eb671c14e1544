"""Any connector, by vLLM's base interface; what some say beyond it."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.base.hook import KvWorkerHook, KvWorkers
from penstock.instrumentation.vllm.kv.base.mooncake import MooncakeHook
from penstock.instrumentation.vllm.kv.base.step_loads import StepLoads
from penstock.instrumentation.vllm.kv.base.transfers import KvTransfers

__all__ = [
    "KvTransfers",
    "KvWorkerHook",
    "KvWorkers",
    "MooncakeHook",
    "StepLoads",
]
