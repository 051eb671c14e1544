"""Differences between the versions of vLLM that are supported: one module each, which goes when its last version does."""

from __future__ import annotations

from penstock.instrumentation.vllm.compat.block_clippers import block_clipper
from penstock.instrumentation.vllm.compat.cached_embeds import forget_embeds
from penstock.instrumentation.vllm.compat.child_connectors import child_connectors
from penstock.instrumentation.vllm.compat.choice import (
    connector_differences,
    encoder_differences,
    scheduler_differences,
    worker_differences,
)
from penstock.instrumentation.vllm.compat.encoder import ask_for_reports, hears_all_ranks
from penstock.instrumentation.vllm.compat.encoder_widths import encoder_widths
from penstock.instrumentation.vllm.compat.errored_requests import errored_requests
from penstock.instrumentation.vllm.compat.expert_moves import MOVE_STREAM, move_stream
from penstock.instrumentation.vllm.compat.failed_loads import (
    awaits_blocks,
    can_fail_loads,
    can_fail_receive,
    fail_receive,
    failed_receives,
    has_failed_receive,
)
from penstock.instrumentation.vllm.compat.failed_transfers import counts_transfers_alone
from penstock.instrumentation.vllm.compat.layer_groups import layer_groups
from penstock.instrumentation.vllm.compat.memory_types import mixes_memory_types
from penstock.instrumentation.vllm.compat.nixl_facts import open_factors, speculative_factors
from penstock.instrumentation.vllm.compat.placeholder_fields import placeholder_fields
from penstock.instrumentation.vllm.compat.request_failures import (
    drop_output,
    drop_stale_output,
    has_stale_output,
    preempt_dropping,
)
from penstock.instrumentation.vllm.compat.retryable_error import retryable_error
from penstock.instrumentation.vllm.compat.transfer_modes import transfer_mode

__all__ = [
    "MOVE_STREAM",
    "ask_for_reports",
    "awaits_blocks",
    "block_clipper",
    "can_fail_loads",
    "can_fail_receive",
    "child_connectors",
    "connector_differences",
    "counts_transfers_alone",
    "drop_output",
    "drop_stale_output",
    "encoder_differences",
    "encoder_widths",
    "errored_requests",
    "fail_receive",
    "failed_receives",
    "forget_embeds",
    "has_failed_receive",
    "has_stale_output",
    "hears_all_ranks",
    "layer_groups",
    "mixes_memory_types",
    "move_stream",
    "open_factors",
    "placeholder_fields",
    "preempt_dropping",
    "retryable_error",
    "scheduler_differences",
    "speculative_factors",
    "transfer_mode",
    "worker_differences",
]
