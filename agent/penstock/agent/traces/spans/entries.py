"""Assigns the entries of a logged batch to requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.batch import probe_rows, transfer_rows, typed_events
from penstock.agent.traces.spans.model import EventEntry, ProbeEntry, SampleEntry
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.model import Source
    from penstock.agent.traces.spans.model import Entry
    from penstock.proto.v1.ingest_pb2 import Batch

# Events that no span is made of.
_WITHOUT_SPAN = frozenset(
    ("", "source_lost", "source_stopped", "server_stopping", "forgotten", "quarantine_changed")
)


class RequestKey(NamedTuple):
    """A request in this pod; internal ids are unique per server only."""

    server: str
    request_id: str


def without_batch(entry: Entry) -> Entry:
    """Return a copy of *entry* that does not keep its whole batch in memory, as an event of a parsed batch does."""
    if not isinstance(entry, EventEntry):
        return entry
    event = Event()
    event.CopyFrom(entry.event)
    return EventEntry(entry.source, event)


def request_entries(source: Source, batch: Batch) -> Iterator[tuple[RequestKey, Entry]]:
    """Yield the entries of *batch* with the request that each concerns, in the order of the batch.

    A handshake comes once for each request that waited for it.
    """
    server = source.key.server
    for kind, event in typed_events(batch):
        if kind == "handshake":
            for waiter in event.handshake.waiting_request_ids:
                yield RequestKey(server, waiter), EventEntry(source, event)
        elif event.request_id and kind not in _WITHOUT_SPAN:
            yield RequestKey(server, event.request_id), EventEntry(source, event)
    for sample in transfer_rows(batch):
        if sample.request_id:
            yield RequestKey(server, sample.request_id), SampleEntry(source, sample)
    for probe in probe_rows(batch):
        if probe.request_id:
            yield RequestKey(server, probe.request_id), ProbeEntry(source, probe)
