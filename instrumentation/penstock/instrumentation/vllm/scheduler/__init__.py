"""The mixin over vLLM's scheduler."""

from __future__ import annotations

from penstock.instrumentation.vllm.scheduler.hook import SchedulerClassHook, SchedulerHook

__all__ = [
    "SchedulerClassHook",
    "SchedulerHook",
]
