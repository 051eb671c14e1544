"""Differences between the versions of vLLM that are supported: one module each, which goes when its last version does."""

from __future__ import annotations

from penstock.instrumentation.vllm.compat.choice import (
    connector_differences,
    scheduler_differences,
    worker_differences,
)
from penstock.instrumentation.vllm.compat.expert_moves import MOVE_STREAM, move_stream
from penstock.instrumentation.vllm.compat.failed_receives import (
    can_fail_receive,
    fail_receive,
    failed_receives,
    has_failed_receive,
)
from penstock.instrumentation.vllm.compat.retryable_error import retryable_error
from penstock.instrumentation.vllm.compat.stale_output import (
    drop_stale_output,
    has_stale_output,
    preempt_dropping,
)

__all__ = [
    "MOVE_STREAM",
    "can_fail_receive",
    "connector_differences",
    "drop_stale_output",
    "fail_receive",
    "failed_receives",
    "has_failed_receive",
    "has_stale_output",
    "move_stream",
    "preempt_dropping",
    "retryable_error",
    "scheduler_differences",
    "worker_differences",
]
