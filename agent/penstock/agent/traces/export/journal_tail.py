"""The walk along the log: read, assemble, deliver, move the cursor."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from typing import TYPE_CHECKING

import structlog
from penstock.agent.traces.assembly import Assembler, recall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.agent.journal import Reader
    from penstock.agent.model import Source
    from penstock.agent.traces.assembly import AssemblyLimits, Finished
    from penstock.agent.traces.export.delivery import Delivery
    from penstock.agent.traces.spans import Span

_log = structlog.get_logger(__name__)

_BATCHES_A_READ = 64
_BYTES_A_READ = 2 << 20
_SPANS_A_CALL = 512
# A Hello that comes again may say more.
_SOURCE_SECONDS = 1.0
# A batch is stamped before it is committed; what is this much older is in the log or will not come.
_COMMIT_NANO = 500_000_000


class JournalTail:
    """One walk from the cursor on; one thread.

    Attributes:
        low: the oldest batch that is still needed; where the next walk has to begin.
        exported: everything that was closed by this batch or before has been delivered.
        position: the last batch that was read.
        oldest_unexported_unix_nano: when the oldest batch with undelivered spans was received; 0 if
            there is none.
        sampled_out: spans left out by the sampling.
        skipped: requests, batches or parts of them without spans because of an error of our own.

    """

    def __init__(
        self,
        reader: Reader,
        delivery: Delivery,
        cursor: tuple[int, int],
        *,
        sample_ratio: Callable[[Source], float],
        limits: AssemblyLimits,
        moved: Callable[[JournalTail], None],
    ) -> None:
        self._reader = reader
        self._delivery = delivery
        self._moved = moved
        self._assembler = Assembler(
            self._source,
            recall=lambda key, logged: recall(reader, key, logged, sample_ratio=sample_ratio, limits=limits),
            sample_ratio=sample_ratio,
            limits=limits,
            delivered=cursor[1],
            on_error=self._skip,
        )
        self._sources: dict[int, Source] = {}
        self._sources_at = time.monotonic()
        self.low, self.exported = cursor
        self.position = max(self.low - 1, 0)
        # As `exported`, but for spans that the delivery has set aside; and the low and the time of the first of those.
        self._reached = self.exported
        self._held: tuple[int, int] | None = None
        delivery.begin()
        self.oldest_unexported_unix_nano = 0
        self.sampled_out = 0
        self.skipped = 0

    @property
    def given_up(self) -> dict[str, int]:
        """Requests that were finished before their end, by what there was too much of."""
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
            self._delivery.again(lambda: self._moved(self))
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
        """Go on after an error of our own; one of the journal ends this walk."""
        if isinstance(error, sqlite3.Error):
            raise error
        self.skipped += 1
        _log.error("an entry of the log gives no span", after=self.position, exc_info=error)

    def _deliver(self, finished: Iterable[Finished]) -> bool:
        # What is at or before the cursor was delivered before a restart; the walk only needed its entries.
        unsent = deque(item for item in finished if item.closed_at > self._reached)
        while unsent:
            chunk, spans = _take(unsent)
            begun = self.low, chunk[0].closed_unix_nano
            self.oldest_unexported_unix_nano = self._held[1] if self._held else begun[1]
            # A call may take as long as its time-out: what waits shows from its beginning.
            self._moved(self)
            if spans and not self._delivery.deliver(spans, lambda: self._moved(self)):
                return False
            self.sampled_out += sum(item.sampled_out for item in chunk)
            last = chunk[-1].closed_at
            # Part of that batch's spans may be in the next call.
            self._reached = last - 1 if unsent and unsent[0].closed_at == last else last
            self._move(unsent, begun)
        self._move(())
        return True

    def _move(self, unsent: Collection[Finished], begun: tuple[int, int] | None = None) -> None:
        """Move the cursor, unless spans were set aside since *begun*: those are read again after a restart."""
        if self._delivery.suspects:
            self._held = self._held or begun
        else:
            self._held = None
            self.exported = max(self.exported, min(self._reached, self._assembler.settled))
        low, self.oldest_unexported_unix_nano = self._held or (self._assembler.low, 0)
        self.low = min([low, self._assembler.low, *(item.first_batch for item in unsent)])
        self._moved(self)


def _take(unsent: deque[Finished]) -> tuple[list[Finished], list[Span]]:
    """Take from the left what fits into one call, at least one."""
    chunk = [unsent.popleft()]
    spans = list(chunk[0].spans)
    while unsent and len(spans) + len(unsent[0].spans) <= _SPANS_A_CALL:
        chunk.append(unsent.popleft())
        spans += chunk[-1].spans
    return chunk, spans
