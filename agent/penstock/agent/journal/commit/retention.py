"""Retention: deletes the oldest batches at the budget, and closed sources without batches."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import structlog
from penstock.agent.journal.database import run_to_end, unsigned
from penstock.agent.journal.index import KIND_NUMBERS

if TYPE_CHECKING:
    from penstock.agent.journal.index import RequestIndex
    from penstock.agent.state import Budget

_log = structlog.get_logger(__name__)

TRACES = "traces"
"""The cursor of the trace export."""

MAX_CLOSED_SOURCES = 10_000
"""Closed sources without batches whose watermarks are kept."""

# The part of the limit (1/32) that the Hellos of closed sources may take: what a source says of itself may be long.
_SHARE_OF_CLOSED = 32

# Seconds between two measurements of a log far below its mark: measuring after each commit would cost as much as the commit.
_MEASURE_SECONDS = 0.05
# Bytes that a batch takes in the file and the indexes, at most: for each byte of its body, and for the batch itself.
_STORED_BYTES_PER_BODY_BYTE = 4
_STORED_BYTES_PER_BATCH = 1_024
# Batches that a step deletes beside twice those that were appended, so that a log over its mark shrinks.
_LEAST_DELETED = 64
# Batches to delete on a full disk, the next number where there is no room for more: deleting writes, too.
_DELETED_ON_FULL_DISK = (64, 16, 4, 1)
# Pages (4 MiB) that a step gives back to the disk: the writer waits no longer for it than for a commit.
_PAGES_A_STEP = 1_024
# New sources after which closed ones are looked at: finding what is over the limit reads all of them.
_SOURCES_A_CHECK = 256


class Usage(NamedTuple):
    """The size of the journal.

    Attributes:
        used_bytes: in use in the database's file.
        file_bytes: of the file; what is not in use is used next.
        limit_bytes: of the file.
        pruned: batches that were deleted, over all lives of this state.
        unexported: of these, the ones that the trace export had not delivered.
        oldest_unix_nano: when the oldest batch that is left was received; 0 if there is none.

    """

    used_bytes: int = 0
    file_bytes: int = 0
    limit_bytes: int = 0
    pruned: int = 0
    unexported: int = 0
    oldest_unix_nano: int = 0


class Retention:
    """Deletes the oldest batches; on the writer's thread.

    Only what the saved metrics have counted may go: a counter never loses what was acknowledged. What the trace
    export has not delivered yet goes too, when nothing else is left, and is counted: the other choice, to take in
    nothing more, would cost the metrics of the present as well as its traces.

    Attributes:
        blocked: the log is over its mark and what is oldest is not in the saved metrics yet.

    """

    def __init__(self, database: sqlite3.Connection, budget: Budget, requests: RequestIndex) -> None:
        self._database = database
        self._requests = requests
        self._budget = budget
        self._opened = 0
        self._measured = 0.0
        self._grown = 0
        self._unexported_logged = False
        self.blocked = False
        self.usage = Usage()
        self.measure()

    def set_connection(self, database: sqlite3.Connection) -> None:
        """Use another connection to the same content."""
        self._database = database

    @property
    def full(self) -> bool:
        """Whether appends are refused, because nothing may be deleted."""
        return self.blocked and self.usage.used_bytes >= self._budget.stop

    def measure(self) -> None:
        """Measure the file."""
        self._measured, self._grown = time.monotonic(), 0
        size = self._number("PRAGMA page_size")
        pages, free = self._number("PRAGMA page_count"), self._number("PRAGMA freelist_count")
        pruned, unexported = self._database.execute("SELECT batches, unexported FROM pruned").fetchone()
        oldest = self._number("SELECT received_unix_nano FROM batches ORDER BY id LIMIT 1")
        self.usage = Usage((pages - free) * size, pages * size, self._budget.full, pruned, unexported, oldest)

    def _number(self, query: str) -> int:
        row = self._database.execute(query).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0

    def opened(self, count: int) -> None:
        """Count sources that were seen for the first time."""
        self._opened += count

    def step(self, appended: int, size: int) -> bool:
        """Delete more than the *appended* batches, of *size* bytes, if the log is over its mark; True if there is more to do.

        Raises:
            sqlite3.Error: it could not be written; nothing has changed.

        """
        self._grown += _STORED_BYTES_PER_BODY_BYTE * size + _STORED_BYTES_PER_BATCH * appended
        usage = self.usage
        if (
            usage.used_bytes + self._grown < self._budget.high
            and usage.file_bytes <= self._budget.full
            and time.monotonic() - self._measured < _MEASURE_SECONDS
        ):
            return False
        self.measure()
        self.blocked = False
        if self.usage.used_bytes > self._budget.high:
            self.blocked = not self._prune(2 * appended + _LEAST_DELETED)
            return not self.blocked
        if self.usage.file_bytes > self._budget.full and self._shrinks():
            # The limit is lower than it was.
            run_to_end(self._database, f"PRAGMA incremental_vacuum({_PAGES_A_STEP})")
            return True
        return False

    def _shrinks(self) -> bool:
        return self._number("PRAGMA auto_vacuum") > 0 and self._number("PRAGMA freelist_count") > 0

    def make_room(self) -> bool:
        """Delete some of the oldest batches that are counted and exported; False if there are none.

        Raises:
            sqlite3.Error: there is not even room to delete.

        """
        done = False
        for count in _DELETED_ON_FULL_DISK:
            try:
                done = self._prune(count, delivered_only=True)
                break
            except sqlite3.Error:
                # What is deleted is written to the write-ahead log first; less of it may fit.
                if count == _DELETED_ON_FULL_DISK[-1]:
                    raise
        self.measure()
        return done

    def _prune(self, count: int, *, delivered_only: bool = False) -> bool:
        folded = self._number("SELECT batch FROM folds WHERE name = 'metrics'")
        cursor = self._database.execute(
            "SELECT low, exported FROM cursors WHERE name = ?", (TRACES,)
        ).fetchone()
        low, exported = cursor or (0, 0)
        last = min(folded, low - 1) if delivered_only else folded
        oldest = self._oldest(last, count)
        if not oldest:
            return False
        unexported = sum(number > exported for number in oldest)
        self._database.execute("BEGIN IMMEDIATE")
        try:
            self._delete(oldest[-1])
            self._database.execute(
                "UPDATE pruned SET batches = batches + ?, unexported = unexported + ?",
                (len(oldest), unexported),
            )
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self._log_unexported(unexported, exported)
        return True

    def _oldest(self, last: int, count: int) -> list[int]:
        """Return *count* batches, none above *last*; fewer if they are large, so that a transaction is not."""
        found: list[int] = []
        # More than one transaction can have appended, so that the log does shrink.
        left = 2 * self._budget.transaction
        query = "SELECT id, length(body) FROM batches WHERE id <= ? ORDER BY id LIMIT ?"
        with closing(self._database.execute(query, (last, count))) as rows:
            for number, size in rows:
                found.append(number)
                left -= size
                if left <= 0:
                    break
        return found

    def _delete(self, through: int) -> None:
        # Of one kind at a time, because they lie so; 0 is that of a newer peer's events.
        self._database.executemany(
            "DELETE FROM kinds WHERE kind = ? AND batch <= ?",
            [(kind, through) for kind in (0, *KIND_NUMBERS.values())],
        )
        self._requests.drop(through)
        # A wait that is older than the whole log: its end comes with its start's time, so nothing is lost but
        # the ending that the agent would make up for a source that vanishes.
        self._database.execute("DELETE FROM open_deferrals WHERE batch <= ?", (through,))
        self._database.execute("DELETE FROM batches WHERE id <= ?", (through,))

    def _log_unexported(self, unexported: int, exported: int) -> None:
        if unexported and not self._unexported_logged:
            _log.error(
                "the log is at its limit and the trace backend is behind: the oldest traces are dropped",
                exported=exported,
                limit_bytes=self._budget.limit,
            )
        self._unexported_logged = unexported > 0

    def forget_sources(self) -> list[int]:
        """Delete the closed sources without batches that are over the limit; return their epochs. Most calls do nothing."""
        if self._opened < _SOURCES_A_CHECK:
            return []
        self._opened = 0
        rows = self._database.execute(
            "DELETE FROM sources WHERE epoch IN ("
            " SELECT epoch FROM (SELECT epoch, row_number() OVER newest AS number, sum(length(hello)) OVER newest AS size"
            " FROM sources WHERE (closed_unix_nano IS NOT NULL OR process = 'agent')"
            " AND last_batch < coalesce((SELECT min(id) FROM batches), last_batch + 1)"
            " WINDOW newest AS (ORDER BY last_seen_unix_nano DESC, epoch))"
            " WHERE number > ? OR size > ?) RETURNING epoch",
            (MAX_CLOSED_SOURCES, self._budget.limit // _SHARE_OF_CLOSED),
        ).fetchall()
        return [unsigned(epoch) for (epoch,) in rows]
