"""Differences between the versions of vLLM that are supported, by subject; each goes when its last version does."""

from __future__ import annotations

from penstock.instrumentation.vllm.compat.choice import (
    connector_differences,
    encoder_differences,
    scheduler_differences,
    worker_differences,
)
from penstock.instrumentation.vllm.compat.connectors import child_connectors
from penstock.instrumentation.vllm.compat.encoder import (
    ask_for_reports,
    encoder_widths,
    forget_embeds,
    hears_all_ranks,
    placeholder_fields,
)
from penstock.instrumentation.vllm.compat.expert_moves import MOVE_STREAM, move_stream
from penstock.instrumentation.vllm.compat.failures import (
    awaits_blocks,
    can_fail_loads,
    can_fail_receive,
    counts_transfers_alone,
    drop_output,
    drop_stale_output,
    error_handlers,
    errored_requests,
    fail_receive,
    failed_receives,
    has_failed_receive,
    has_stale_output,
    native_facts,
    preempt_dropping,
    request_error,
    retryable_error,
    tells_of_unread,
)
from penstock.instrumentation.vllm.compat.nixl_worker import (
    block_clipper,
    layer_groups,
    mixes_memory_types,
    open_factors,
    speculative_factors,
    transfer_mode,
)
from penstock.instrumentation.vllm.compat.waiting_requests import (
    admits_holders_when_paused,
    delayed_load,
    delays_loads,
    running_limit,
)

__all__ = [
    "MOVE_STREAM",
    "admits_holders_when_paused",
    "ask_for_reports",
    "awaits_blocks",
    "block_clipper",
    "can_fail_loads",
    "can_fail_receive",
    "child_connectors",
    "connector_differences",
    "counts_transfers_alone",
    "delayed_load",
    "delays_loads",
    "drop_output",
    "drop_stale_output",
    "encoder_differences",
    "encoder_widths",
    "error_handlers",
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
    "native_facts",
    "open_factors",
    "placeholder_fields",
    "preempt_dropping",
    "request_error",
    "retryable_error",
    "running_limit",
    "scheduler_differences",
    "speculative_factors",
    "tells_of_unread",
    "transfer_mode",
    "worker_differences",
]
