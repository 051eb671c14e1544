"""Spans of a rebalance of experts: the whole on one rank, and its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.batch import balancedness
from penstock.agent.traces.spans import attributes, ids, semconv
from penstock.agent.traces.spans.model import Span
from penstock.proto.v1 import common_pb2, events_pb2

if TYPE_CHECKING:
    from penstock.agent.traces.spans.model import EventEntry


def rebalance_spans(entry: EventEntry) -> tuple[Span, ...]:
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
