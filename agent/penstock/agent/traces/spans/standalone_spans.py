"""Spans that belong to no single request: a shared handshake, a rebalance, a policy that took effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.traces import ids, names, parts
from penstock.agent.traces.facts import Cause
from penstock.agent.traces.rebalance import rebalance_spans
from penstock.agent.traces.spans import Span
from penstock.proto.v1 import common_pb2

if TYPE_CHECKING:
    from penstock.agent.traces.spans import EventEntry


KINDS = frozenset(("handshake", "policy_applied", "eplb_rebalance", "transfer_failure"))
"""Events that may have spans of their own."""


# Of a layer's number that may be one.
_LAYER_DIGITS = 9


def standalone_spans(entry: EventEntry) -> tuple[Span, ...]:
    """Build the spans of an event that has a trace of its own, parents first; empty for all others."""
    match entry.event.WhichOneof("body"):
        case "handshake":
            return (_handshake(entry),)
        case "policy_applied":
            return (_policy_applied(entry),)
        case "eplb_rebalance":
            return rebalance_spans(entry)
        case "transfer_failure":
            failure = _failure(entry)
            return () if failure is None else (failure,)
    return ()


def _handshake(entry: EventEntry) -> Span:
    event, handshake = entry.event, entry.event.handshake
    trace_id, span_id = ids.handshake_ids(handshake.id)
    failed = handshake.result == common_pb2.TRANSFER_RESULT_ERROR
    end = handshake.end_time_unix_nano or event.time_unix_nano
    start = handshake.start_time_unix_nano or handshake.queued_time_unix_nano or end
    offset = parts.seconds(handshake.clock_offset_nano) if handshake.HasField("clock_offset_nano") else None
    error_type = parts.word(common_pb2.ErrorType, handshake.error_type) or "other"
    mode = parts.word(common_pb2.FailureMode, common_pb2.FAILURE_MODE_HANDSHAKE)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id="",
        name=names.HANDSHAKE,
        start_unix_nano=start,
        end_unix_nano=end,
        source=entry.source,
        attributes=parts.present(
            {
                **parts.server_attributes(handshake.peer),
                names.CHANNEL: parts.word(common_pb2.Channel, common_pb2.CHANNEL_KV),
                names.CONNECTOR: handshake.connector,
                names.RANKS: (event.rank,),
                names.HANDSHAKE_ID: f"{handshake.id:016x}",
                names.QUEUE_SECONDS: parts.since(handshake.queued_time_unix_nano, start),
                names.WAITERS: handshake.waiters_total,
                names.WAITING_REQUEST_IDS: tuple(handshake.waiting_request_ids),
                names.CLOCK_OFFSET_SECONDS: offset,
                names.MODE: mode if failed else None,
                names.ERROR_TYPE: error_type if failed else None,
                names.ERROR_CLASS: handshake.error_class,
                names.REHEARSAL: parts.rehearsal([entry]),
            }
        ),
        client=True,
        error=f"{error_type}: {handshake.error_text}" if failed else None,
        entries=(entry,),
    )


def _policy_applied(entry: EventEntry) -> Span:
    event, applied = entry.event, entry.event.policy_applied
    key = (names.POLICY_APPLY, entry.source.epoch, applied.hash, event.time_unix_nano)
    start = applied.received_time_unix_nano or event.time_unix_nano
    return Span(
        trace_id=ids.trace_id("\0".join(map(str, key))),
        span_id=ids.span_id(*key),
        parent_span_id="",
        name=names.POLICY_APPLY,
        start_unix_nano=start,
        end_unix_nano=event.time_unix_nano,
        source=entry.source,
        attributes=parts.present(
            {
                names.POLICY_HASH: applied.hash,
                names.PREVIOUS_POLICY_HASH: applied.previous_hash,
                names.ACCEPTED: applied.accepted,
                names.CAUSE: applied.cause,
            }
        ),
        error=None if applied.accepted else applied.error or "refused",
        entries=(entry,),
    )


def _failure(entry: EventEntry) -> Span | None:
    """Build the span of a failure that concerns no request; a handshake tells its own."""
    event, failure = entry.event, entry.event.transfer_failure
    if event.request_id or failure.handshake_id:
        return None
    name = parts.of_failure(failure.channel, failure.mode)
    layer = failure.item if failure.channel == common_pb2.CHANNEL_EPLB else ""
    if layer:
        name = names.EPLB_LAYER  # the rebalance has a span of its own
    key = (
        name,
        entry.source.epoch,
        event.component,
        event.rank,
        failure.mode,
        event.time_unix_nano,
        failure.peer.address,
        failure.item,
    )
    start = failure.start_time_unix_nano or event.time_unix_nano
    return Span(
        trace_id=ids.trace_id("\0".join(map(str, key))),
        span_id=ids.span_id(*key),
        parent_span_id="",
        name=name,
        start_unix_nano=start,
        end_unix_nano=event.time_unix_nano,
        source=entry.source,
        attributes=parts.present(
            {
                **parts.server_attributes(failure.peer),
                names.CHANNEL: parts.word(common_pb2.Channel, failure.channel),
                names.CONNECTOR: failure.connector,
                names.RANKS: (event.rank,),
                **parts.cause_attributes(Cause(failure.mode, failure.error_type, failure.peer)),
                names.ERROR_CLASS: failure.error_class,
                names.UPSTREAM_TYPE: failure.upstream_type,
                names.LAYER: int(layer) if layer.isdecimal() and len(layer) <= _LAYER_DIGITS else None,
                names.REHEARSAL: parts.rehearsal([entry]),
            }
        ),
        client=failure.channel != common_pb2.CHANNEL_EPLB,
        error=parts.error_message(failure.mode, failure.error_type, failure.error_text),
        entries=(entry,),
    )
