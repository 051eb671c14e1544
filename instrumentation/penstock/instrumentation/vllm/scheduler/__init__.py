"""The mixin over vLLM's scheduler, and the factory for ``--scheduler-cls``."""

from __future__ import annotations

from penstock.instrumentation.vllm.scheduler.hook import (
    SchedulerClassHook,
    SchedulerHook,
    create_scheduler,
)

__all__ = [
    "SchedulerClassHook",
    "SchedulerHook",
    "create_scheduler",
]
