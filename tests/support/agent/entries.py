"""Entries as hooks emit them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.constants import (
    CHANNEL_KV,
    COMPONENT_SCHEDULER,
    COMPONENT_WORKER,
    DIRECTION_RECEIVE,
    TRANSFER_RESULT_OK,
)

if TYPE_CHECKING:
    from penstock.instrumentation.runtime import Runtime


def emit_failure(runtime: Runtime, request_id: str, text: str = "refused") -> None:
    """Emit a transfer failure."""
    fields = {"channel": CHANNEL_KV, "peer": {"address": "10.0.0.7:5600"}, "error_text": text}
    runtime.emit_event("transfer_failure", fields, component=COMPONENT_SCHEDULER, request_id=request_id)


def emit_closed(runtime: Runtime, request_id: str) -> None:
    """Emit the end of a request, which completes its trace."""
    fields = {"finish_reason": "stop", "prompt_tokens": 7}
    runtime.emit_event("request_closed", fields, component=COMPONENT_SCHEDULER, request_id=request_id)


def emit_transfer(runtime: Runtime, request_id: str) -> None:
    """Emit a completed transfer."""
    runtime.emit_transfer(
        1_750_000_000_000_000_000, 11_000_000, 393_216, 6, 40_000, 0, CHANNEL_KV, DIRECTION_RECEIVE,
        TRANSFER_RESULT_OK, COMPONENT_WORKER, 0, "NixlConnector", "10.0.0.7:5600", "engine-a", request_id,
    )  # fmt: skip


def emit_probe(runtime: Runtime, request_id: str) -> None:
    """Emit a question to a remote cache."""
    runtime.emit_probe(1_750_000_000_000_000_000, 900_000, 1, "ZmqECConnector", "10.0.0.7:5600", request_id)


def acknowledged(runtime: Runtime) -> bool:
    """Tell whether all that was emitted has been committed by the agent.

    Its thread is asked: while it makes a batch, entries are neither in a queue nor in the outbox.
    """
    service = runtime._exporter
    if service is None or not service.flush(1.0):
        return False
    return not runtime.emitter.queued() and not len(service._outbox)
