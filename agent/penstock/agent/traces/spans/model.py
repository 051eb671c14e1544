"""Entries of the log by request, and the finished spans that are made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.agent.batch import probe_rows, transfer_rows, typed_events
from penstock.proto.v1.events_pb2 import Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.batch import ProbeSample, TransferSample
    from penstock.agent.model import Source
    from penstock.proto.v1.ingest_pb2 import Batch

MOST_NANO = (1 << 64) - 1
"""The last moment that OTLP and our own messages can name, in the year 2554."""

AttributeValue: TypeAlias = str | bool | int | float | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EventEntry:
    """An event of the log and who sent it."""

    source: Source
    event: Event

    @property
    def body(self) -> Event:
        """The entry itself."""
        return self.event


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """A transfer of the log and who sent it."""

    source: Source
    sample: TransferSample

    @property
    def body(self) -> TransferSample:
        """The entry itself."""
        return self.sample


@dataclass(frozen=True, slots=True)
class ProbeEntry:
    """A probe of the log and who sent it."""

    source: Source
    probe: ProbeSample

    @property
    def body(self) -> ProbeSample:
        """The entry itself."""
        return self.probe


Entry: TypeAlias = EventEntry | SampleEntry | ProbeEntry


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span, in whatever trace; *to* is its name."""

    trace_id: str
    span_id: str
    to: str


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span; ids in lower-case hex, times in nanoseconds since the epoch on the engine's clock.

    Whatever an engine sends, a span ends by ``MOST_NANO`` and in 1970 at the earliest, and begins before it ends: what ends before
    it began (a clock was set back) has no length.

    Attributes:
        parent_span_id: empty for a root.
        client: kind CLIENT; else INTERNAL.
        error: the status message of status ERROR; None for UNSET.
        source: who the span belongs to; its resource is that of the source's engine.
        request_id: vLLM's internal id; empty where it concerns no request.
        entries: the entries of the log that it was made of.
        remote_parent: the parent is the caller's span.

    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    start_unix_nano: int
    end_unix_nano: int
    source: Source
    attributes: Mapping[str, AttributeValue]
    client: bool = False
    error: str | None = None
    links: tuple[SpanLink, ...] = ()
    request_id: str = ""
    entries: tuple[Entry, ...] = field(default=(), repr=False)
    remote_parent: bool = False
    tracestate: str = ""

    def __post_init__(self) -> None:
        end = min(max(self.end_unix_nano, 0), MOST_NANO)
        object.__setattr__(self, "start_unix_nano", min(max(self.start_unix_nano, 0), end))
        object.__setattr__(self, "end_unix_nano", end)


# Events that no span is made of.
_WITHOUT_SPAN = frozenset(
    (
        "",
        "source_lost",
        "source_stopped",
        "server_stopping",
        "forgotten",
        "quarantine_changed",
        "kv_caches_released",
    )
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
