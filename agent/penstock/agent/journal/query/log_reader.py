"""Reading batches and sources, each reader on a read-only connection of its own."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError
from penstock.agent.aio import ThreadYield
from penstock.agent.errors import ImpossibleError
from penstock.agent.journal.database import (
    BATCH_COLUMNS,
    MAX_INTEGER,
    BatchParser,
    connect_reader,
    decode_source,
    event_of,
    journal_errors,
    logged_of,
    signed,
    unsigned,
)
from penstock.agent.journal.index import RequestLookup
from penstock.agent.state import DamagedError, error_text, is_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path
    from typing import Self

    from penstock.agent.model import LoggedBatch, Source
    from penstock.agent.state import DatabaseFiles
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.ingest_pb2 import Batch

BATCH_QUERY = f"SELECT {BATCH_COLUMNS} FROM batches"  # noqa: S608  (constants)


class OpenDeferral(NamedTuple):
    """The start of a deferral that has not ended."""

    epoch: int
    start: Event


class SourceRow(NamedTuple):
    """A row of the sources.

    Attributes:
        opened_unix_nano: when it connected first.
        closed_unix_nano: when it said goodbye, was lost or stopped; 0 while it is open.
        last_batch: its newest.

    """

    source: Source
    watermark: int
    opened_unix_nano: int
    last_seen_unix_nano: int
    closed_unix_nano: int
    last_batch: int

    @property
    def closed(self) -> bool:
        """Whether it said goodbye, was lost or stopped."""
        return self.closed_unix_nano > 0


class LogReader:
    """Reads what is committed when a method is called. One thread at a time.

    Args:
        path: of the journal.
        stopped: asked before each batch; once it returns True, reading one raises ImpossibleError.
        whereabouts: of the journal's files; after a restore, a reader that follows the log continues in the new ones.
        damaged: called with SQLite's text if damage is found while this reader is used in a ``with``.

    Raises:
        StateError: it cannot be read; or its files are gone and will be restored within a second.

    """

    def __init__(
        self,
        path: Path,
        stopped: Callable[[], bool] = lambda: False,
        whereabouts: DatabaseFiles | None = None,
        damaged: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._stopped = stopped
        self._whereabouts = whereabouts
        self._damaged = damaged
        self._parser = BatchParser()
        # Of all queries: most of a scan is one that asks for a batch at a time, and what is done with each.
        self._yield_now = ThreadYield()
        self._open()

    def _open(self) -> None:
        restored = 0
        if self._whereabouts is not None:
            restored = self._whereabouts.restored
            self._whereabouts.require_in_place()
        with journal_errors(self._path):
            self._database = connect_reader(self._path)
        self._restored = restored
        self._lookup = RequestLookup(self._database)

    def _reopen_if_moved(self) -> None:
        """Reopen the database if its files were restored at their path."""
        if self._whereabouts is not None and self._whereabouts.restored != self._restored:
            old = self._database
            self._open()
            old.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close the connection."""
        self.close()
        if error is not None and is_damage(error):
            self._damaged(error_text(error))

    def close(self) -> None:
        """Close the connection; a reader that is closed cannot be used again."""
        self._database.close()

    def parse(self, logged: LoggedBatch) -> Batch:
        """Return the batch; an empty one instead of a damaged one, which :attr:`unreadable` counts."""
        return self._parser.parse(logged)

    @property
    def unreadable(self) -> int:
        """How many different batches could not be parsed so far."""
        return len(self._parser.unreadable)

    def first(self) -> int:
        """Return the id of the oldest batch; 0 if there is none."""
        return self._number("SELECT min(id) FROM batches")

    def last(self) -> int:
        """Return the id of the newest batch; 0 if there is none."""
        self._reopen_if_moved()
        return self._number("SELECT max(id) FROM batches")

    def last_until(self, unix_nano: int) -> int:
        """Return the id of the newest batch that was received by then; 0 if there is none."""
        return self._number(
            "SELECT id FROM batches WHERE received_unix_nano <= ? ORDER BY received_unix_nano DESC, id DESC LIMIT 1",
            (min(unix_nano, MAX_INTEGER),),
        )

    def _number(self, query: str, values: Sequence[int | str] = ()) -> int:
        row = self._database.execute(query, values).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0

    def _batches(self, query: str, values: Sequence[int | str] = ()) -> Generator[LoggedBatch, None, None]:
        """Yield what *query* finds, one in memory at a time; between them others may run."""
        with closing(self._database.execute(query, values)) as rows:
            for row in rows:
                if self._stopped():
                    raise ImpossibleError("the agent is stopping; ask again")
                yield logged_of(row)
                self._yield_now()

    def batches(self, after: int, limit: int = 256, max_bytes: int = sys.maxsize) -> list[LoggedBatch]:
        """Return batches with an id above *after*, ascending: at most *limit*, and no more once they have *max_bytes*.

        Raises:
            DamagedError: they do not ascend: to continue from the last one would not end.

        """
        self._reopen_if_moved()
        found: list[LoggedBatch] = []
        query = f"{BATCH_QUERY} WHERE id > ? ORDER BY id LIMIT ?"
        with closing(self._batches(query, (after, limit))) as logged:
            for batch in logged:
                if batch.id <= after:
                    raise DamagedError(f"batch {batch.id} of the log comes after {after}")
                after = batch.id
                found.append(batch)
                max_bytes -= len(batch.body)
                if max_bytes <= 0:
                    break
        return found

    def source(self, epoch: int) -> Source | None:
        """Return the source of an epoch; None if it is unknown or its row is damaged."""
        row = self._database.execute("SELECT hello FROM sources WHERE epoch = ?", (signed(epoch),)).fetchone()
        try:
            return None if row is None else decode_source(epoch, row[0])
        except DecodeError:
            return None

    def sources(self) -> list[Source]:
        """Return all sources, in the order in which they were first seen."""
        return [row.source for row in self.source_rows()]

    def source_rows(self) -> list[SourceRow]:
        """Return all sources with what the journal knows of them, in the order in which they were first seen."""
        rows = self._database.execute(
            "SELECT epoch, hello, watermark, opened_unix_nano, last_seen_unix_nano, coalesce(closed_unix_nano, 0), last_batch"
            " FROM sources ORDER BY opened_unix_nano, rowid"
        )
        return [SourceRow(decode_source(unsigned(epoch), hello), *numbers) for epoch, hello, *numbers in rows]

    def ends_with_goodbye(self, row: SourceRow) -> bool:
        """Return whether a source's newest batch is its goodbye, or the agent's word that it has stopped.

        False if that was deleted or is damaged.
        """
        try:
            logged = self.batch(row.last_batch)
        except sqlite3.Error as error:
            if is_damage(error):
                return False
            raise
        if logged is None:
            return False
        batch = self.parse(logged)
        return batch.HasField("goodbye") or any(
            event.source_stopped.epoch == row.source.epoch for event in batch.events
        )

    def is_open(self, epoch: int) -> bool:
        """Return whether a source has connected and since then neither said goodbye nor was lost."""
        query = "SELECT count(*) FROM sources WHERE epoch = ? AND closed_unix_nano IS NULL"
        return self._number(query, (signed(epoch),)) > 0

    def batch(self, number: int) -> LoggedBatch | None:
        """Return one batch; None if it is gone."""
        return next(iter(list(self._batches(f"{BATCH_QUERY} WHERE id = ?", (number,)))), None)

    def newest_of(self, epoch: int, after: int, until: int, most: int) -> int:
        """Return the newest batch of a source with an id above *after*, up to *until*; 0 for none among the newest *most*."""
        return self._number(
            "SELECT max(id) FROM batches WHERE id > ? AND id <= ? AND epoch = ?",
            (max(after, until - most), until, signed(epoch)),
        )

    def waiting_epochs(self) -> set[int]:
        """Return the sources that have deferrals which have not ended."""
        # A search for each, and not a look at each deferral.
        rows = self._database.execute(
            "WITH RECURSIVE found(epoch) AS (SELECT min(epoch) FROM open_deferrals UNION ALL"
            " SELECT (SELECT min(epoch) FROM open_deferrals WHERE epoch > found.epoch) FROM found WHERE epoch IS NOT NULL)"
            " SELECT epoch FROM found WHERE epoch IS NOT NULL"
        )
        return {unsigned(epoch) for (epoch,) in rows}

    def open_deferrals(self, epoch: int, limit: int = 10_000) -> tuple[list[OpenDeferral], int]:
        """Return at most *limit* deferrals of a source that have not ended, and how many there are in all."""
        rows = self._database.execute(
            "SELECT start FROM open_deferrals WHERE epoch = ? LIMIT ?", (signed(epoch), limit)
        ).fetchall()
        total = len(rows)
        if total == limit:
            total = self._number("SELECT count(*) FROM open_deferrals WHERE epoch = ?", (signed(epoch),))
        return [
            OpenDeferral(epoch, start) for (body,) in rows if (start := event_of(body)) is not None
        ], total

    def cursor(self, name: str) -> tuple[int, int]:
        """Return the cursor's (low, exported); (0, 0) if it was never saved."""
        row = self._database.execute("SELECT low, exported FROM cursors WHERE name = ?", (name,)).fetchone()
        return (0, 0) if row is None else (int(row[0]), int(row[1]))
