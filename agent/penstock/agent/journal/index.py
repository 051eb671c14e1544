"""What the journal finds batches by: the kinds of their events, and the requests that they name.

Why a kind has one row in a batch and a request a hash: ``docs/decisions/0003-requests-are-indexed-by-a-hash.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock.agent.journal.connect import MAX_INTEGER
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.kinds import KindAndEvent
    from penstock.proto.v1.ingest_pb2 import Batch

_BODIES = Event.DESCRIPTOR.oneofs_by_name["body"].fields
KIND_NUMBERS = {field.name: field.number for field in _BODIES}
_NAMES_REMOTE = frozenset(
    field.name
    for field in _BODIES
    if field.message_type is not None and "remote_request_id" in field.message_type.fields_by_name
)
_NAMES_OTHERS = _NAMES_REMOTE | {"request_closed", "handshake"}


class KindRow(NamedTuple):
    """The events of one kind in a batch; ``kind`` is the field number in ``Event.body``, 0 for those of a newer peer."""

    kind: int
    newest_unix_nano: int


def kind_rows(events: Iterable[KindAndEvent]) -> list[KindRow]:
    """Return a row for each kind that is among *events*."""
    newest: dict[str, int] = {}
    for kind, event in events:
        time = event.time_unix_nano
        if time >= newest.get(kind, 0):
            newest[kind] = time
    return [KindRow(KIND_NUMBERS.get(kind, 0), min(time, MAX_INTEGER)) for kind, time in newest.items()]


def _other_ids(kind: str, event: Event) -> Iterable[str]:
    """Return the ids that *event* names beside its own: the remote one, the client's name for it, the waiters."""
    if kind == "handshake":
        return event.handshake.waiting_request_ids
    if kind == "request_closed":
        return event.request_closed.remote_request_id, event.request_closed.external_request_id
    return (getattr(event, kind).remote_request_id,)


def event_request_ids(event: Event) -> set[str]:
    """Return all ids of requests that *event* is about."""
    kind = event.WhichOneof("body")
    ids = {event.request_id}
    if kind in _NAMES_OTHERS:
        ids.update(_other_ids(kind, event))
    ids.discard("")
    return ids


def request_ids(batch: Batch, events: Iterable[KindAndEvent]) -> set[str]:
    """Return all ids of requests that *batch* names: in its *events* and its samples."""
    ids: set[str] = set()
    for kind, event in events:
        ids.add(event.request_id)
        if kind in _NAMES_OTHERS:
            ids.update(_other_ids(kind, event))
    strings = batch.strings
    for column in (batch.transfers.request_id, batch.probes.request_id):
        ids.update([strings[index] for index in set(column)])
    ids.discard("")
    return ids


def request_key(request_id: str) -> int:
    """Return what a request is found by: 32 bits of its id. Others may have the same."""
    return crc32(request_id.encode())


def request_keys(batch: Batch, events: Iterable[KindAndEvent]) -> set[int]:
    """Return the keys of all requests that *batch* names."""
    return {request_key(request_id) for request_id in request_ids(batch, events)}
