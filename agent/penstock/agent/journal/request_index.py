"""The index of requests on the writer's side: what is recent is moved into runs, what is gone from the log is dropped."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from penstock.agent.journal.connection import blob
from penstock.agent.journal.request_index_format import BUCKETS, RUN_BATCHES, RUN_KEYS, make_run

if TYPE_CHECKING:
    import sqlite3

_KEY_BYTES = 4


class RequestIndex:
    """Keeps what is not in a run yet below a run's size; on the writer's thread."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._keys = 0
        self._first = self._last = 0
        self._changed = False
        self._measure()

    def use(self, database: sqlite3.Connection) -> None:
        """Go on with another connection to the same content."""
        self._database = database

    def _measure(self) -> None:
        size, self._first, self._last = self._database.execute(
            "SELECT coalesce(sum(length(keys)), 0), coalesce(min(batch), 0), coalesce(max(batch), 0) FROM recent"
        ).fetchone()
        self._keys = size // _KEY_BYTES
        self._changed = False

    def added(self, last: int, keys: int) -> None:
        """Note that batches up to *last* were committed, with so many keys."""
        if keys:
            self._keys += keys
            self._first = self._first or last
            self._last = last

    def step(self) -> bool:
        """Move the oldest keys into a run, if there are enough for one; True if there may be more to do.

        Raises:
            sqlite3.Error: it could not be written; nothing has changed.

        """
        if self._changed:
            self._measure()
        if self._keys < RUN_KEYS and self._last - self._first < RUN_BATCHES:
            return False
        rows = self._oldest()
        run = make_run(rows)
        self._database.execute("BEGIN IMMEDIATE")
        try:
            self._database.execute("INSERT INTO runs VALUES (?, ?, ?)", run[:3])
            self._database.executemany(
                "INSERT INTO buckets VALUES (?, ?)",
                [(run.first * BUCKETS + number, bucket) for number, bucket in run.buckets],
            )
            self._database.execute("DELETE FROM recent WHERE batch <= ?", (run.last,))
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.rollback()
            raise
        self._keys -= sum(len(keys) for _, keys in rows) // _KEY_BYTES
        self._first = run.last + 1
        return True

    def _oldest(self) -> list[tuple[int, bytes]]:
        rows: list[tuple[int, bytes]] = []
        left = RUN_KEYS * _KEY_BYTES
        with closing(self._database.execute("SELECT batch, keys FROM recent ORDER BY batch")) as found:
            for row in found:
                if left <= 0 or (rows and row[0] - rows[0][0] >= RUN_BATCHES):
                    break
                rows.append(row)
                left -= len(blob(row[1]))
        return rows

    def drop(self, through: int) -> None:
        """Delete what is known of batches up to *through*, inside of the caller's transaction; a run goes with its last one."""
        if self._database.execute("DELETE FROM recent WHERE batch <= ?", (through,)).rowcount:
            # Or not, if the caller's transaction fails.
            self._changed = True
        gone = self._database.execute("SELECT first FROM runs WHERE last <= ?", (through,)).fetchall()
        self._database.executemany(
            "DELETE FROM buckets WHERE id BETWEEN ? AND ?",
            [(first * BUCKETS, first * BUCKETS + BUCKETS - 1) for (first,) in gone],
        )
        self._database.executemany("DELETE FROM runs WHERE first = ?", gone)
