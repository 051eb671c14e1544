"""What the journal finds batches by: the events and the requests that a batch names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.journal.connect import MAX_INTEGER
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from penstock.proto.v1.ingest_pb2 import Batch

_BODIES = Event.DESCRIPTOR.oneofs_by_name["body"].fields
KIND_NUMBERS = {field.name: field.number for field in _BODIES}
_NAMES_REMOTE = frozenset(
    field.name
    for field in _BODIES
    if field.message_type is not None and "remote_request_id" in field.message_type.fields_by_name
)


class EventRow(NamedTuple):
    """One event of a batch; ``kind`` is its field number in ``Event.body``, 0 for one of a newer peer."""

    kind: int
    pos: int
    time_unix_nano: int


def event_rows(batch: Batch) -> list[EventRow]:
    """Return a row for each event."""
    return [
        EventRow(
            KIND_NUMBERS.get(event.WhichOneof("body") or "", 0), pos, min(event.time_unix_nano, MAX_INTEGER)
        )
        for pos, event in enumerate(batch.events)
    ]


def event_request_ids(event: Event) -> set[str]:
    """Return all ids of requests that *event* is about: its own, the remote one, the client's name for it, the waiters."""
    ids = {event.request_id}
    kind = event.WhichOneof("body")
    if kind is None:
        return ids - {""}
    body = getattr(event, kind)
    if kind in _NAMES_REMOTE:
        ids.add(body.remote_request_id)
    if kind == "request_closed":
        ids.add(body.external_request_id)
    elif kind == "handshake":
        ids.update(body.waiting_request_ids)
    ids.discard("")
    return ids


def request_ids(batch: Batch) -> set[str]:
    """Return all ids of requests that *batch* names, those of its samples included."""
    ids: set[str] = set()
    for event in batch.events:
        ids |= event_request_ids(event)
    strings = batch.strings
    for column in (batch.transfers.request_id, batch.probes.request_id):
        ids.update(strings[index] for index in set(column))
    ids.discard("")
    return ids
