"""Index keys of a batch: the kinds of its events and the requests that it names.

Why a kind has one row in a batch and a request a hash: ``docs/decisions/0020-the-request-index.md``.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock.agent.journal.database import MAX_INTEGER
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.batch import BatchColumns

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


def kind_rows(contents: BatchColumns) -> list[KindRow]:
    """Return a row for each kind that is among the events."""
    return [
        KindRow(KIND_NUMBERS.get(kind, 0), min(group.newest, MAX_INTEGER))
        for kind, group in contents.groups.items()
    ]


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


def request_ids(contents: BatchColumns) -> set[str]:
    """Return all ids of requests that a batch names: in its events and its samples."""
    ids: set[str] = set()
    for kind, group in contents.groups.items():
        ids.update(group.request_ids)
        # As `_other_ids`, for all events of the kind at once.
        if kind in _NAMES_REMOTE:
            ids.update(group.values("remote_request_id"))
        if kind == "request_closed":
            ids.update(group.values("external_request_id"))
        elif kind == "handshake":
            ids.update(chain.from_iterable(body.waiting_request_ids for body in group.bodies))
    strings = contents.strings
    for columns in (contents.transfers, contents.probes):
        if len(columns):
            ids.update(map(strings.__getitem__, set(columns["request_id"])))
    ids.discard("")
    return ids


def request_key(request_id: str) -> int:
    """Return the index key of a request: 32 bits of its id. Keys collide."""
    return crc32(request_id.encode())


def request_keys(contents: BatchColumns) -> set[int]:
    """Return the keys of all requests that a batch names: :func:`request_key` of each."""
    return set(map(crc32, map(str.encode, request_ids(contents))))
