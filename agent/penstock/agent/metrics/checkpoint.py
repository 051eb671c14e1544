"""The aggregator's checkpoint: restored at the start, updated at each commit, saved periodically."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import structlog
from penstock.agent.batch import BatchColumns
from penstock.agent.errors import StateError
from penstock.agent.journal import parse_batch
from penstock.agent.state import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from penstock.agent.journal import Journal
    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.agent.model import LoggedBatch, Source
    from penstock.proto.v1.ingest_pb2 import Batch

_log = structlog.get_logger(__name__)

SAVE_SECONDS = 30.0
SAVE_BATCHES = 10_000
# A replay counts 40,000 to 1,000,000 entries a second; a restart is to take less than two.
SAVE_ENTRIES = 50_000
POLL_SECONDS = 1.0
# Read at a time: 256 batches of a mebibyte would be more than the agent may have.
REPLAY_BYTES = 4 << 20
# Batches that are committed while the aggregator is dumped; with more, the loop waits for the dump's end.
MAX_WAITING = 1_024


_SIGNALS_NANO = 15 * 60 * 10**9


class Checkpointed(Protocol):
    """The part of the aggregator that is used here."""

    def apply(self, source: Source, contents: BatchColumns) -> None:
        """Count the next batch of the log."""

    def dump(self) -> bytes:
        """Return the state."""

    def load(self, blob: bytes) -> None:
        """Restore a state; StateError if that fails."""


class AggregatorCheckpoint:
    """Applies each batch of the log to *aggregator* exactly once, over all lives of the agent.

    Attributes:
        at: id of the batch that was applied last.
        poisoned: batches that could not be counted, wholly or in part, since the start.

    """

    def __init__(self, journal: Journal, aggregator: Checkpointed) -> None:
        self._journal = journal
        self._aggregator = aggregator
        self._saved = 0
        self._entries = 0
        self._dump: Future[bytes] | None = None
        self._waiting: list[tuple[int, Source, Batch]] = []
        self.at = 0
        self.poisoned = 0

    async def restore(self) -> int:
        """Load the saved state, replay what the log holds beyond it, and follow the log from now on.

        Returns:
            How many batches were replayed.

        """
        saved = self._journal.load_metrics_state()
        if saved is not None:
            try:
                self._aggregator.load(saved[1])
                self.at = self._saved = saved[0]
            except StateError as error:
                _log.warning("the saved metrics cannot be used; replaying the log", reason=str(error))
        replayed = 0
        sources: dict[int, Source | None] = {}
        with self._journal.reader() as reader:
            if not self.at and (
                reader.first() > 1 or self._journal.usage.pruned or self._journal.lost_batches
            ):
                # The beginning of the log is gone: what it alone can tell is a genuine reset.
                self._journal.restart_counting()
            while rows := reader.batches(self.at, max_bytes=REPLAY_BYTES):
                for row in rows:
                    if row.epoch not in sources:
                        sources[row.epoch] = reader.source(row.epoch)
                    self._replay(row, sources[row.epoch])
                replayed += len(rows)
                # Health answers meanwhile.
                await asyncio.sleep(0)
        self._journal.on_commit(self._committed)
        return replayed

    def _replay(self, row: LoggedBatch, source: Source | None) -> None:
        """Apply a batch of the log. A damaged one is not counted: an error here would repeat at every start."""
        self.at = row.id
        try:
            batch = parse_batch(row)
        except DamagedError as error:
            self._leave_out(row, str(error))
            return
        if source is None:
            self._leave_out(row, "its source is not known")
            return
        self._apply(row.id, source, BatchColumns(batch, row.body))

    def _leave_out(self, row: LoggedBatch, error: str) -> None:
        self.poisoned += 1
        _log.error("a batch cannot be read and is not counted", batch=row.id, epoch=row.epoch, error=error)

    def _committed(self, batch_id: int, source: Source, contents: BatchColumns) -> None:
        if self._dump is None:
            self._apply(batch_id, source, contents)
            return
        # The aggregator stands still while it is dumped, so that the dump is that of one place in the log.
        # Without what was read of them: that takes as much memory again.
        self._waiting.append((batch_id, source, contents.batch))
        if len(self._waiting) >= MAX_WAITING:
            self._finish_dump()

    def _apply(self, batch_id: int, source: Source, contents: BatchColumns) -> None:
        # First, so that a batch that the aggregator cannot take is not tried for ever.
        self.at = batch_id
        batch = contents.batch
        self._entries += len(batch.events) + len(batch.transfers.result) + len(batch.probes.result)
        try:
            self._aggregator.apply(source, contents)
        except Exception as error:  # noqa: BLE001  (one batch that cannot be counted must not stop the others)
            self.poisoned += 1
            _log.exception(
                "a batch could not be counted; it stays in the log",
                batch=batch_id,
                epoch=source.epoch,
                seq=batch.seq,
                engine=str(source.key),
                process=source.process,
                what=str(error),
            )

    def save(self) -> None:
        """Queue the state for the journal, if it has changed. Blocks while it is dumped."""
        self._finish_dump()
        if self.at > self._saved:
            self._put(self._aggregator.dump())

    def _put(self, blob: bytes) -> None:
        self._journal.save_metrics_state(self.at, blob)
        self._saved = self.at
        self._entries = 0

    def _finish_dump(self) -> None:
        """Wait for the dump that is under way, if there is one, and apply what was committed meanwhile."""
        if self._dump is None:
            return
        try:
            self._put(self._dump.result())
        finally:
            self._dump = None
            waiting, self._waiting = self._waiting, []
            for batch_id, source, batch in waiting:
                self._apply(batch_id, source, BatchColumns(batch))

    async def _save_beside(self, pool: ThreadPoolExecutor) -> None:
        if self.at > self._saved:
            dump = self._dump = pool.submit(self._aggregator.dump)
            try:
                await asyncio.shield(asyncio.wrap_future(dump))
            finally:
                self._finish_dump()

    async def keep_saving(self) -> None:
        """Save in a thread, until cancelled: every 30 seconds, when a replay would get long, and on demand."""
        last = time.monotonic()
        with ThreadPoolExecutor(1, "penstock-aggregator") as pool:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                if (
                    self.at - self._saved >= SAVE_BATCHES
                    or self._entries >= SAVE_ENTRIES
                    or self._journal.wants_metrics_state
                    or time.monotonic() - last >= SAVE_SECONDS
                ):
                    last = time.monotonic()
                    try:
                        await self._save_beside(pool)
                    except Exception:  # noqa: BLE001  (a save that fails costs a longer replay, no more)
                        _log.exception("the metrics could not be saved; a restart replays more of the log")


async def refill_signals(journal: Journal, aggregator: Aggregator, now: int) -> None:
    """Read the 15 minutes before *now* (nanoseconds) once more, for the slots that no checkpoint has."""
    await asyncio.to_thread(aggregator.refill_signals, _batches_since(journal, now - _SIGNALS_NANO))


def _batches_since(journal: Journal, since: int) -> Iterator[tuple[Source, BatchColumns]]:
    sources: dict[int, Source | None] = {}
    with journal.reader() as reader:
        after = reader.last_until(since)
        while rows := reader.batches(after, max_bytes=REPLAY_BYTES):
            after = rows[-1].id
            for row in rows:
                if row.epoch not in sources:
                    sources[row.epoch] = reader.source(row.epoch)
                source = sources[row.epoch]
                with suppress(DamagedError):
                    if source is not None:
                        yield source, BatchColumns(parse_batch(row), row.body)
