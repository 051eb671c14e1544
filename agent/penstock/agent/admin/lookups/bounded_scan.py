"""Reads events of the log within bounds, and reports whether the result was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.journal import MAX_INTEGER, STEP_SECONDS, ReadBudget
from penstock.proto.v1.ingest_pb2 import Batch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from penstock.agent.journal import Reader
    from penstock.agent.model import LoggedBatch, Source
    from penstock.proto.v1.events_pb2 import Event

MAX_EVENTS = 20_000


class FoundEvent(NamedTuple):
    """An event of the log, its position and its source."""

    logged: LoggedBatch
    position: int
    event: Event
    source: Source


class EventScan:
    """The events at *rows*, within bounds; holds one batch in memory."""

    def __init__(
        self,
        reader: Reader,
        rows: Iterable[tuple[LoggedBatch, int]],
        *,
        events: int = MAX_EVENTS,
        allowance: ReadBudget | None = None,
    ) -> None:
        """Prepare the scan.

        Args:
            reader: of the journal, for the sources.
            rows: positions of events; those of one batch are adjacent.
            events: maximum number of events read.
            allowance: the read budget of *rows*.

        """
        self._full = False
        self._allowance = allowance or ReadBudget()
        self._reader = reader
        self._rows = rows
        self._events = events
        self._sources: dict[int, Source | None] = {}

    @classmethod
    def newest(
        cls,
        reader: Reader,
        *,
        kinds: Collection[str],
        since_unix_nano: int,
        request_id: str = "",
        until: int = MAX_INTEGER,
    ) -> EventScan:
        """Scan the newest events of *kinds* since *since_unix_nano*, of *request_id* or of all requests, up to batch *until*."""
        allowance = ReadBudget(seconds=STEP_SECONDS)
        rows = reader.scan(
            kinds=kinds,
            request_id=request_id,
            since_unix_nano=since_unix_nano,
            until=until,
            # One more than is read, to detect the cut.
            limit=MAX_EVENTS + 1,
            allowance=allowance,
        )
        return cls(reader, rows, events=MAX_EVENTS, allowance=allowance)

    @property
    def unreadable(self) -> int:
        """Number of damaged batches that the reader has met."""
        return self._reader.unreadable

    @property
    def cut(self) -> bool:
        """Whether the bounds ended the scan; valid after the iteration."""
        return self._full or self._allowance.cut

    def __iter__(self) -> Iterator[FoundEvent]:
        """Yield the events, except those of unknown sources."""
        batch, batch_id = Batch(), 0
        for logged, index in self._rows:
            if not self._events:
                self._full = True
                return
            self._events -= 1
            if logged.id != batch_id:
                batch, batch_id = self._reader.parse(logged), logged.id
            source = self._source(logged.epoch)
            if source is not None:
                yield FoundEvent(logged, index, batch.events[index], source)

    def _source(self, epoch: int) -> Source | None:
        if epoch not in self._sources:
            self._sources[epoch] = self._reader.source(epoch)
        return self._sources[epoch]
