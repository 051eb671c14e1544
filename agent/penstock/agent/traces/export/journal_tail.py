"""Tails the journal: reads, assembles, delivers, and moves the cursor."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from typing import TYPE_CHECKING

import structlog
from penstock.agent.traces.assembly import Assembler, find_finished_request
from penstock.agent.traces.spans import with_policy_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.agent.journal import Reader
    from penstock.agent.model import Source
    from penstock.agent.traces.assembly import AssemblyLimits, Finished, Sampler
    from penstock.agent.traces.export.delivery import Delivery
    from penstock.agent.traces.spans import PolicyLookup, Span

_log = structlog.get_logger(__name__)

# Batches, and their bytes, of one read: the connection is free for others between two.
_BATCHES_A_READ = 64
_BYTES_A_READ = 2 << 20
# Seconds for which a source is remembered: a Hello that comes again may say more.
_SOURCE_SECONDS = 1.0
# A batch is stamped before it is committed; what is this much older is in the log or will not come.
_COMMIT_NANO = 500_000_000


class JournalTail:
    """Reads the log from the cursor on; one thread.

    Attributes:
        low: the oldest batch that is still needed; the next tail begins there.
        exported: everything that was closed by this batch or before has been delivered.
        position: the last batch that was read.
        oldest_unexported_unix_nano: when the oldest batch with undelivered spans was received; 0 if
            there is none.
        sampled_out: spans left out by the sampling.
        skipped: requests, batches or parts of them without spans because of an internal error.

    """

    def __init__(
        self,
        reader: Reader,
        delivery: Delivery,
        cursor: tuple[int, int],
        *,
        sampler: Callable[[Source], Sampler],
        policies: PolicyLookup,
        limits: AssemblyLimits,
        spans_a_call: int,
        on_progress: Callable[[JournalTail], None],
    ) -> None:
        self._reader = reader
        self._delivery = delivery
        self._policies = policies
        self._spans_a_call = spans_a_call
        self._on_progress = on_progress
        self._assembler = Assembler(
            self._source,
            find_finished=lambda key, logged: find_finished_request(
                reader, key, logged, sampler=sampler, limits=limits
            ),
            sampler=sampler,
            limits=limits,
            delivered=cursor[1],
            on_error=self._skip,
        )
        self._sources: dict[int, Source] = {}
        self._sources_at = time.monotonic()
        self.low, self.exported = cursor
        self.position = max(self.low - 1, 0)
        # Closings up to here are delivered; ahead of `exported` while their grace is not over (Assembler.settled).
        self._delivered = self.exported
        self.oldest_unexported_unix_nano = 0
        self.sampled_out = 0
        self.skipped = 0

    @property
    def given_up(self) -> dict[str, int]:
        """Requests that were finished before their end, by the limit that they exceeded."""
        return dict(self._assembler.given_up)

    @property
    def closing(self) -> bool:
        """Whether spans wait for their grace to pass."""
        return self._assembler.closing > 0

    def step(self) -> bool | None:
        """Read some batches and deliver what they finish.

        Returns True if there may be more to read, False at the end of the log, and None if the end of
        the export came before everything was delivered.
        """
        batches = self._reader.batches(self.position, _BATCHES_A_READ, _BYTES_A_READ)
        finished: list[Finished] = []
        for logged in batches:
            finished += self._assembler.apply(logged)
            self.position = logged.id
        if not batches:
            finished += self._assembler.advance(time.time_ns() - _COMMIT_NANO)
        if not self._deliver(finished):
            return None
        return bool(batches)

    def _source(self, epoch: int) -> Source | None:
        """Return the source of an epoch, as it was a moment ago: each batch asks for it."""
        now = time.monotonic()
        if now - self._sources_at > _SOURCE_SECONDS:
            self._sources, self._sources_at = {}, now
        source = self._sources.get(epoch) or self._reader.source(epoch)
        if source is not None:
            self._sources[epoch] = source
        return source

    def _skip(self, error: Exception) -> None:
        """Count an internal error; an error of the journal is raised."""
        if isinstance(error, sqlite3.Error):
            raise error
        self.skipped += 1
        _log.error("a log entry could not be turned into a span", after=self.position, exc_info=error)

    def _deliver(self, finished: Iterable[Finished]) -> bool:
        # What is at or before the cursor was delivered before a restart; the walk only needed its entries.
        unsent = deque(item for item in finished if item.closing_batch > self._delivered)
        while unsent:
            chunk, spans = _next_call(unsent, self._spans_a_call)
            self.oldest_unexported_unix_nano = chunk[0].closed_unix_nano
            # A call may take as long as its time-out: what waits shows from its beginning.
            self._on_progress(self)
            if spans and not self._delivery.deliver(self._named(spans), lambda: self._on_progress(self)):
                return False
            self.oldest_unexported_unix_nano = 0
            self.sampled_out += sum(item.sampled_out for item in chunk)
            last = chunk[-1].closing_batch
            # Part of that batch's spans may be in the next call.
            self._delivered = last - 1 if unsent and unsent[0].closing_batch == last else last
            self._move_cursor(unsent)
        self._move_cursor(())
        return True

    def _named(self, spans: list[Span]) -> list[Span]:
        try:
            return with_policy_names(spans, self._policies)
        except Exception as error:  # noqa: BLE001  (a name is not worth a span)
            _log.error("spans are exported without policy names", exc_info=error)
            return spans

    def _move_cursor(self, unsent: Collection[Finished]) -> None:
        self.exported = max(self.exported, min(self._delivered, self._assembler.settled))
        self.low = min([self._assembler.low, *(item.first_batch for item in unsent)])
        self._on_progress(self)


def _next_call(unsent: deque[Finished], most: int) -> tuple[list[Finished], list[Span]]:
    """Remove from the left what fits into one call of *most* spans, at least one item."""
    chunk = [unsent.popleft()]
    spans = list(chunk[0].spans)
    while unsent and len(spans) + len(unsent[0].spans) <= most:
        chunk.append(unsent.popleft())
        spans += chunk[-1].spans
    return chunk, spans
