"""Spans that belong to no single request: a handshake, a rebalance, a policy that took effect, a front end out of rotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.batch import balancedness
from penstock.agent.errors import without_advice
from penstock.agent.traces.spans import attributes, ids, semconv
from penstock.agent.traces.spans.model import Span
from penstock.agent.traces.spans.request_history import Cause
from penstock.proto.v1 import common_pb2, events_pb2

if TYPE_CHECKING:
    from penstock.agent.traces.spans.model import EventEntry


STANDALONE_KINDS = frozenset(
    ("handshake", "policy_applied", "rotation_changed", "eplb_rebalance", "transfer_failure")
)
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
        case "rotation_changed":
            # Its beginning is told again at its end.
            return () if entry.event.rotation_changed.out else (_out_of_rotation(entry),)
        case "eplb_rebalance":
            return _rebalance_spans(entry)
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
    offset = (
        attributes.seconds(handshake.clock_offset_nano) if handshake.HasField("clock_offset_nano") else None
    )
    error_type = attributes.enum_word(common_pb2.ErrorType, handshake.error_type) or "other"
    mode = attributes.enum_word(common_pb2.FailureMode, common_pb2.FAILURE_MODE_HANDSHAKE)
    error = f"{error_type}: {without_advice(handshake.error_text)}" if failed else None
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id="",
        name=semconv.HANDSHAKE,
        start_unix_nano=start,
        end_unix_nano=end,
        source=entry.source,
        attributes=attributes.span_attributes(
            {
                **attributes.connection_attributes(handshake.peer),
                semconv.CHANNEL: attributes.enum_word(common_pb2.Channel, common_pb2.CHANNEL_KV),
                semconv.CONNECTOR: handshake.connector,
                semconv.RANKS: (event.rank,),
                semconv.HANDSHAKE_ID: f"{handshake.id:016x}",
                semconv.QUEUE_SECONDS: attributes.seconds_between(handshake.queued_time_unix_nano, start),
                semconv.WAITERS: handshake.waiters_total,
                semconv.WAITING_REQUEST_IDS: tuple(handshake.waiting_request_ids),
                semconv.CLOCK_OFFSET_SECONDS: offset,
                semconv.MODE: mode if failed else None,
                semconv.CAUSE_ERROR_TYPE: error_type if failed else None,
                semconv.ERROR_CLASS: handshake.error_class,
                semconv.REHEARSAL: attributes.rehearsal([entry]),
            },
            error,
        ),
        client=True,
        error=error,
        entries=(entry,),
    )


def _policy_applied(entry: EventEntry) -> Span:
    event, applied = entry.event, entry.event.policy_applied
    key = (semconv.POLICY_APPLY, entry.source.epoch, applied.hash, event.time_unix_nano)
    start = applied.received_time_unix_nano or event.time_unix_nano
    error = None if applied.accepted else applied.error or "refused"
    return Span(
        trace_id=ids.trace_id("\0".join(map(str, key))),
        span_id=ids.span_id(*key),
        parent_span_id="",
        name=semconv.POLICY_APPLY,
        start_unix_nano=start,
        end_unix_nano=event.time_unix_nano,
        source=entry.source,
        attributes=attributes.span_attributes(
            {
                semconv.POLICY_HASH: applied.hash,
                semconv.PREVIOUS_POLICY_HASH: applied.previous_hash,
                semconv.ACCEPTED: applied.accepted,
                semconv.CAUSE: applied.cause,
            },
            error,
        ),
        error=error,
        entries=(entry,),
    )


def _out_of_rotation(entry: EventEntry) -> Span:
    event = entry.event
    key = (semconv.OUT_OF_ROTATION, entry.source.epoch, event.time_unix_nano)
    return Span(
        trace_id=ids.trace_id("\0".join(map(str, key))),
        span_id=ids.span_id(*key),
        parent_span_id="",
        name=semconv.OUT_OF_ROTATION,
        start_unix_nano=event.rotation_changed.since_time_unix_nano or event.time_unix_nano,
        end_unix_nano=event.time_unix_nano,
        source=entry.source,
        attributes={},
        entries=(entry,),
    )


def _failure(entry: EventEntry) -> Span | None:
    """Build the span of a failure that concerns no request; a handshake has a span of its own."""
    event, failure = entry.event, entry.event.transfer_failure
    if event.request_id or failure.handshake_id:
        return None
    name = attributes.failure_span_name(failure.channel, failure.mode)
    layer = failure.item if failure.channel == common_pb2.CHANNEL_EPLB else ""
    if layer:
        name = semconv.EPLB_LAYER  # the rebalance has a span of its own
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
    error = attributes.error_message(failure.mode, failure.error_type, failure.error_text)
    return Span(
        trace_id=ids.trace_id("\0".join(map(str, key))),
        span_id=ids.span_id(*key),
        parent_span_id="",
        name=name,
        start_unix_nano=start,
        end_unix_nano=event.time_unix_nano,
        source=entry.source,
        attributes=attributes.span_attributes(
            {
                **attributes.server_attributes(failure.peer),
                semconv.CHANNEL: attributes.enum_word(common_pb2.Channel, failure.channel),
                semconv.CONNECTOR: failure.connector,
                semconv.RANKS: (event.rank,),
                **attributes.cause_attributes(Cause(failure.mode, failure.error_type, failure.peer)),
                semconv.ERROR_CLASS: failure.error_class,
                semconv.UPSTREAM_TYPE: failure.upstream_type,
                semconv.LAYER: int(layer) if layer.isdecimal() and len(layer) <= _LAYER_DIGITS else None,
                semconv.REHEARSAL: attributes.rehearsal([entry]),
            },
            error,
        ),
        client=failure.channel != common_pb2.CHANNEL_EPLB,
        error=error,
        entries=(entry,),
    )


def _rebalance_spans(entry: EventEntry) -> tuple[Span, ...]:
    """Build the span of a rebalance on one rank, and below it those of the layers that received experts."""
    event, rebalance = entry.event, entry.event.eplb_rebalance
    start = rebalance.start_time_unix_nano or max(event.time_unix_nano - rebalance.duration_nano, 0)
    # The ranks of one process are one trace; the step alone would repeat after a restart.
    trace_key = (semconv.EPLB_REBALANCE, entry.source.epoch, rebalance.model, rebalance.step or start)
    failed = rebalance.result == common_pb2.TRANSFER_RESULT_ERROR
    layers = rebalance.layers
    text = ": ".join(filter(None, (rebalance.error_class, rebalance.error_text)))
    error = (text or "error") if failed else None
    # Elastic expert parallelism may rebalance twice in one step.
    key = (*trace_key, event.component, event.rank, start)
    whole = Span(
        trace_id=ids.trace_id("\0".join(map(str, trace_key))),
        span_id=ids.span_id(*key),
        parent_span_id="",
        name=semconv.EPLB_REBALANCE,
        start_unix_nano=start,
        end_unix_nano=start + rebalance.duration_nano,
        source=entry.source,
        attributes=attributes.span_attributes(
            {
                semconv.CHANNEL: attributes.enum_word(common_pb2.Channel, common_pb2.CHANNEL_EPLB),
                semconv.TRIGGER: attributes.enum_word(events_pb2.EplbTrigger, rebalance.trigger),
                semconv.ASYNCHRONOUS: rebalance.asynchronous,
                semconv.COMMUNICATOR: rebalance.communicator,
                semconv.MODEL: rebalance.model,
                semconv.RANKS: (event.rank,),
                semconv.STEP: rebalance.step or None,
                semconv.PAUSE_SECONDS: attributes.seconds(min(rebalance.pause_nano, rebalance.duration_nano)),
                semconv.LAYERS: len(layers),
                semconv.BYTES: sum(layer.bytes for layer in layers),
                semconv.EXPERTS_UNCHANGED: sum(layer.experts_unchanged for layer in layers),
                semconv.EXPERTS_RECEIVED_LOCALLY: sum(layer.experts_received_locally for layer in layers),
                semconv.EXPERTS_RECEIVED_REMOTELY: sum(layer.experts_received_remotely for layer in layers),
                semconv.BALANCEDNESS_BEFORE: balancedness(rebalance, "before"),
                semconv.BALANCEDNESS_AFTER: balancedness(rebalance, "after"),
                semconv.CAUSE_ERROR_TYPE: "other" if failed else None,
                semconv.REHEARSAL: attributes.rehearsal([entry]),
            },
            error,
        ),
        error=error,
        entries=(entry,),
    )
    moved = (layer for layer in layers if layer.experts_received_locally or layer.experts_received_remotely)
    return (whole, *(_layer(whole, key, layer) for layer in moved))


def _layer(whole: Span, key: tuple[object, ...], layer: events_pb2.EplbLayer) -> Span:
    start = min(max(layer.start_time_unix_nano, whole.start_unix_nano), whole.end_unix_nano)
    return Span(
        trace_id=whole.trace_id,
        span_id=ids.span_id(semconv.EPLB_LAYER, *map(str, key), layer.layer),
        parent_span_id=whole.span_id,
        name=semconv.EPLB_LAYER,
        start_unix_nano=start,
        end_unix_nano=min(start + layer.duration_nano, whole.end_unix_nano),
        source=whole.source,
        attributes=attributes.present(
            {
                semconv.CHANNEL: attributes.enum_word(common_pb2.Channel, common_pb2.CHANNEL_EPLB),
                semconv.LAYER: layer.layer,
                semconv.BYTES: layer.bytes,
                semconv.EXPERTS_UNCHANGED: layer.experts_unchanged,
                semconv.EXPERTS_RECEIVED_LOCALLY: layer.experts_received_locally,
                semconv.EXPERTS_RECEIVED_REMOTELY: layer.experts_received_remotely,
                semconv.EXPERTS: tuple(layer.recv_expert_ids),
                semconv.FROM_RANKS: tuple(source.rank for source in layer.from_ranks),
            }
        ),
    )
