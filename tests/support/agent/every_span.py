"""Spans of everything that the wire can say, for tests that hold them to a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.traces.spans.ids import RequestIdentity
from penstock.agent.traces.spans.model import Entry, EventEntry, ProbeEntry, SampleEntry, Span
from penstock.agent.traces.spans.request_history import RequestFacts
from penstock.agent.traces.spans.request_spans import request_spans
from penstock.agent.traces.spans.standalone_spans import standalone_spans
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.events_pb2 import Event

from tests.support.agent.batches import PEER, TIME
from tests.support.agent.stories import DECODE, DECODE_CORE, PREFILL, probe, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of a request.
_TIMES = {
    "arrival_time_unix_nano": TIME,
    "first_token_time_unix_nano": TIME + 100,
    "scheduled_time_unix_nano": TIME + 5,
}


def every_span() -> Iterator[Span]:
    """Yield the spans of each kind of event with every field set, once for each value of each of its enums.

    The events of a request are of the KV cache, then of the encoder cache; a rebalance is no request's.
    """
    for channel in (common_pb2.CHANNEL_KV, common_pb2.CHANNEL_EC):
        yield from _of_channel(channel)
    for event in _variants("transfer_failure", common_pb2.CHANNEL_EPLB):
        event.request_id, event.transfer_failure.handshake_id = "", 0
        yield from standalone_spans(EventEntry(DECODE_CORE, event))


def _of_channel(channel: int) -> Iterator[Span]:
    variants = {
        field.name: list(_variants(field.name, channel))
        for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields
    }
    first: list[Entry] = [EventEntry(DECODE_CORE, events[0]) for events in variants.values()]
    samples: list[Entry] = [
        SampleEntry(
            DECODE_CORE,
            sample(DECODE, channel=channel, direction=direction, result=result, end_uncertainty_nano=1),
        )
        for direction in common_pb2.Direction.values()[1:]
        for result in common_pb2.TransferResult.values()[1:]
    ]
    probes = [
        ProbeEntry(DECODE_CORE, probe(DECODE, result)) for result in common_pb2.ProbeResult.values()[1:]
    ]
    for extra in (*samples, *probes):
        yield from _of_request([*first, extra])
        yield from _of_request([extra])
    for name, events in variants.items():
        others = [
            entry for entry in first if isinstance(entry, EventEntry) and not entry.event.HasField(name)
        ]
        for event in events:
            entry = EventEntry(DECODE_CORE, event)
            yield from _of_request([*others, entry])
            yield from _of_request([entry])
            yield from _of_request([entry], lost=TIME + 1)
            yield from standalone_spans(entry)
            alone = Event()
            alone.CopyFrom(event)
            alone.request_id, alone.transfer_failure.handshake_id = "", 0
            if name == "transfer_failure":
                yield from standalone_spans(EventEntry(DECODE_CORE, alone))


def _of_request(entries: list[Entry], *, lost: int = 0) -> list[Span]:
    facts = RequestFacts.of(DECODE, entries, lost_unix_nano=lost, dropped=1)
    return request_spans(facts, RequestIdentity(DECODE, PREFILL))


def _variants(name: str, channel: int) -> Iterator[Event]:
    base = Event(
        time_unix_nano=TIME + 1_000,
        request_id=DECODE,
        component=common_pb2.COMPONENT_WORKER,
        rank=1,
        rehearsal=True,
    )
    body = getattr(base, name)
    _fill(body)
    fields = body.DESCRIPTOR.fields_by_name
    if "channel" in fields:
        body.channel = channel
    if channel == common_pb2.CHANNEL_EPLB:
        body.peer.address = "rank:1"
    if name == "request_closed":
        for field, value in _TIMES.items():
            setattr(body, field, value)
    yield base
    for field in fields.values():
        values: list[Any] = []
        if field.enum_type is not None and field.name != "channel":
            values = [value.number for value in field.enum_type.values]
        elif field.type == field.TYPE_BOOL:
            values = [False]
        elif field.name == "item":
            values = [""]
        for value in values:
            other = Event()
            other.CopyFrom(base)
            setattr(getattr(other, name), field.name, value)
            yield other


def _fill(message: Any) -> None:
    """Set every field of *message*: numbers 1, texts a peer's address, one element to each list."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            _fill(getattr(message, field.name).add() if repeated else getattr(message, field.name))
            continue
        if field.enum_type is not None:
            value: Any = 1
        elif field.type == field.TYPE_STRING:
            value = PEER if field.name == "address" else "1"
        elif field.type == field.TYPE_BYTES:
            value = b"1"
        elif field.type == field.TYPE_BOOL:
            value = True
        elif field.name.endswith("time_unix_nano"):
            value = TIME
        else:
            value = 1
        if repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
