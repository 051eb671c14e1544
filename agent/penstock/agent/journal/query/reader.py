"""Searching the log by request, by kind and by time, within a budget of bytes and time."""

from __future__ import annotations

import heapq
import time
from itertools import groupby, islice
from math import inf
from typing import TYPE_CHECKING

from penstock.agent.batch import BatchColumns, typed_events
from penstock.agent.journal.database import MAX_INTEGER, whole
from penstock.agent.journal.index import KIND_NUMBERS, event_request_ids, request_ids, request_key
from penstock.agent.journal.query.log_reader import BATCH_QUERY, LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from penstock.agent.model import LoggedBatch
    from penstock.proto.v1.ingest_pb2 import Batch

# Of the newest batches, when ids are searched by prefix: some 500,000 entries, and a quarter of a second.
_SEARCHED_BYTES = 64 << 20
# A damaged index may hold what is no number, which is above all numbers: without a bound it is seen.
_ALL_OF_KIND = (
    "SELECT batch FROM kinds WHERE kind = :kind AND batch >= :since AND newest_unix_nano >= :newest"
    " ORDER BY batch DESC LIMIT :limit"
)
_OF_KIND_UNTIL = (
    "SELECT batch FROM kinds WHERE kind = :kind AND batch BETWEEN :since AND :until AND newest_unix_nano >= :newest"
    " ORDER BY batch DESC LIMIT :limit"
)
DEFAULT_BYTES = 64 << 20
"""Bytes of batches that a query reads, unless it says otherwise: some 500,000 entries, and a quarter of a second."""

STEP_SECONDS = 2.0
"""Time of one step of a query. Bytes alone do not bound it: an entry of 30 bytes takes as long as one of a kilobyte."""
# Bytes that a query may read although its time is over: the largest message of an engine.
_UNTIMED_BYTES = 1 << 20


class Reader(LogReader):
    """A :class:`LogReader` that searches, too."""

    def request_batch_ids(self, request_id: str, before: int = MAX_INTEGER) -> Iterator[int]:
        """Yield the ids of the batches before *before* that may name the request by any of its ids, the newest first.

        Some are about other requests, whose ids have the same key.
        """
        return reversed(self._lookup.batches(request_key(request_id), before))

    def request_batches(
        self, request_id: str, before: int = MAX_INTEGER, allowance: ReadBudget | None = None
    ) -> list[LoggedBatch]:
        """Return the batches that name the request by any of its ids (own, remote, the client's), ascending.

        Those before the batch *before*, the newest if *allowance* ends: all are in memory at once. One of another
        request may be among them, if it holds the id as a text.
        """
        return list(self.request_batches_newest_first(request_id, before, allowance))[::-1]

    def request_batches_newest_first(
        self, request_id: str, before: int = MAX_INTEGER, allowance: ReadBudget | None = None
    ) -> Iterator[LoggedBatch]:
        """Yield what :meth:`request_batches` returns, one in memory at a time."""
        allowance = allowance or ReadBudget()
        text = request_id.encode()
        for number in self.request_batch_ids(request_id, before):
            if allowance.ends:
                return
            logged = self.batch(number)
            if logged is None:
                continue
            # Also for one that only has the hash: it was read.
            allowance.consume(len(logged.body))
            # Of one that is spoilt its index says that it named the request.
            if text in logged.body or not logged.body:
                yield logged

    def find_requests(self, prefix: str, limit: int = 10) -> list[str]:
        """Return ids of requests that begin with *prefix*, sorted, at most *limit*.

        The newest batches are looked through, 64 MiB of them or two seconds; no further than it takes.
        """
        found: set[str] = set()
        text, allowance = prefix.encode(), ReadBudget(_SEARCHED_BYTES, STEP_SECONDS)
        for logged in self._batches(f"{BATCH_QUERY} ORDER BY id DESC"):
            if text in logged.body or not logged.body:
                found.update(
                    name for name in request_ids(BatchColumns(self.parse(logged))) if name.startswith(prefix)
                )
            allowance.consume(len(logged.body))
            if allowance.ends or len(found) >= limit:
                break
        return sorted(found)[:limit]

    def scan(
        self,
        *,
        kinds: Collection[str] = (),
        request_id: str = "",
        since_unix_nano: int = 0,
        until: int = MAX_INTEGER,
        limit: int = 100,
        allowance: ReadBudget | None = None,
    ) -> Iterator[tuple[LoggedBatch, int]]:
        """Yield events, newest first: the batch and the index of the event in it.

        It reads on only as far as is asked, one batch at a time.

        Args:
            kinds: field names of ``Event.body``; empty for all.
            request_id: any id of a request; empty for all.
            since_unix_nano: only events of this moment or later.
            until: only those of batches up to this id; what came later costs nothing.
            limit: at most so many.
            allowance: of what may be read.

        Raises:
            KeyError: a kind that is none.

        """
        numbers = frozenset([KIND_NUMBERS[kind] for kind in kinds] or [0, *KIND_NUMBERS.values()])
        since_unix_nano = min(since_unix_nano, MAX_INTEGER)
        allowance = allowance or ReadBudget()
        if request_id:
            batches = self.request_batches_newest_first(request_id, until + 1, allowance)
        else:
            batches = self._of_kinds(numbers, since_unix_nano, until, limit, allowance)
        found = (
            (logged, pos)
            for logged in batches
            for pos in _places(self.parse(logged), numbers, since_unix_nano, request_id)
        )
        yield from islice(found, limit)

    def _of_kinds(
        self, kinds: frozenset[int], since_unix_nano: int, until: int, limit: int, allowance: ReadBudget
    ) -> Iterator[LoggedBatch]:
        """Yield the batches that hold events of *kinds*, newest first."""
        # The first batch that can hold one: an event is never received before it happens, but clocks step.
        since_batch = self._number(
            "SELECT min(id) FROM batches WHERE received_unix_nano >= ?", (since_unix_nano - 60_000_000_000,)
        ) if since_unix_nano else 0  # fmt: skip
        # A cursor as it is would be closed with the merge, perhaps after its connection.
        ids = [
            map(
                _batch_id,
                self._database.execute(
                    _ALL_OF_KIND if until == MAX_INTEGER else _OF_KIND_UNTIL,
                    {
                        "kind": number,
                        "since": since_batch,
                        "newest": since_unix_nano,
                        "until": until,
                        "limit": limit,
                    },
                ),
            )
            for number in sorted(kinds)
        ]
        for number, _ in groupby(heapq.merge(*ids, reverse=True)):
            if allowance.ends:
                return
            logged = self.batch(number)
            if logged is not None:
                allowance.consume(len(logged.body))
                yield logged


def _batch_id(row: tuple[object]) -> int:
    return whole(row[0])


def _places(batch: Batch, kinds: frozenset[int], since_unix_nano: int, request_id: str = "") -> Iterator[int]:
    """Yield the indexes of a batch's events of *kinds*, about *request_id* where one is given; the last first."""
    events = typed_events(batch)
    for pos in range(len(events) - 1, -1, -1):
        kind, event = events[pos]
        if (
            KIND_NUMBERS.get(kind, 0) in kinds
            and event.time_unix_nano >= since_unix_nano
            and (not request_id or request_id in event_request_ids(event))
        ):
            yield pos


class ReadBudget:
    """Bytes of batches, and time. The batch that exceeds it is read, none after it.

    Args:
        size: bytes.
        seconds: from now on; they end no query that has read less than *untimed*.
        clock: monotonic seconds.
        untimed: bytes. A process that had no turn for a while has used its time and read nothing.

    Attributes:
        cut: there was more to read.

    """

    def __init__(
        self,
        size: int = DEFAULT_BYTES,
        seconds: float = inf,
        clock: Callable[[], float] = time.monotonic,
        untimed: int = _UNTIMED_BYTES,
    ) -> None:
        self._left = size
        self._timed = size - untimed
        self._clock = clock
        self._end = clock() + seconds
        self.cut = False

    def consume(self, size: int) -> None:
        """Count a batch of *size* bytes that was read."""
        self._left -= size

    @property
    def ends(self) -> bool:
        """Whether the budget is used up; asked only when there is more to read."""
        late = self._left <= self._timed and self._clock() >= self._end
        self.cut = self.cut or self._left <= 0 or late
        return self.cut
