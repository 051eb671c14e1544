"""The index of requests: the writer moves recent keys into runs and drops deleted batches; readers look keys up."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.agent.journal.database import blob
from penstock.agent.journal.index.disk_format import (
    BUCKETS,
    RUN_BATCHES,
    RUN_KEYS,
    batches_in,
    bucket_of,
    make_run,
    pack_keys,
    passes,
    places,
    unpack_keys,
)

if TYPE_CHECKING:
    import sqlite3

# Bytes of a key: the CRC-32 of an id.
_KEY_BYTES = 4


class RequestIndex:
    """The writer's side: moves recent keys into runs. On the writer's thread."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._keys = 0
        self._first = self._last = 0
        self._changed = False
        self._measure()

    def set_connection(self, database: sqlite3.Connection) -> None:
        """Use another connection to the same content."""
        self._database = database

    def _measure(self) -> None:
        size, self._first, self._last = self._database.execute(
            "SELECT coalesce(sum(length(keys)), 0), coalesce(min(batch), 0), coalesce(max(batch), 0) FROM recent"
        ).fetchone()
        self._keys = size // _KEY_BYTES
        self._changed = False

    def added(self, last: int, keys: int) -> None:
        """Count the *keys* of committed batches up to *last*."""
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
        """Delete the keys of batches up to *through*, inside the caller's transaction; a run is deleted with its last batch."""
        if self._database.execute("DELETE FROM recent WHERE batch <= ?", (through,)).rowcount:
            # Or not, if the caller's transaction fails.
            self._changed = True
        gone = self._database.execute("SELECT first FROM runs WHERE last <= ?", (through,)).fetchall()
        self._database.executemany(
            "DELETE FROM buckets WHERE id BETWEEN ? AND ?",
            [(first * BUCKETS, first * BUCKETS + BUCKETS - 1) for (first,) in gone],
        )
        self._database.executemany("DELETE FROM runs WHERE first = ?", gone)


# Bits of a key that the filter of recent keys has a place for: less than one of a hundred passes it by chance.
_BITS = 24
_SHIFT = 32 - _BITS


class _Recent:
    """Keys that were in no run when they were read, with a filter: most look-ups are about new requests.

    They are kept as they are stored, one batch behind the other: one search in C finds a key among all.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        # Of two mebibytes, from the first look-up on: most readers have none.
        self._bits = bytearray()
        self._keys = bytearray()
        # Of each batch the place of its first key.
        self._starts = array("Q")
        self._batches = array("q")

    def _begin(self) -> None:
        self._bits = bytearray(1 << (_BITS - 3))
        self._keys.clear()
        del self._starts[:], self._batches[:]

    def find(self, key: int) -> list[int]:
        if not self._bits or len(self._keys) > 2 * RUN_KEYS * _KEY_BYTES:
            # Of so many keys most have moved into runs.
            self._begin()
        self._read_new()
        bit = key >> _SHIFT
        if not self._bits[bit >> 3] & (1 << (bit & 7)):
            return []
        return [self._batches[bisect_right(self._starts, place) - 1] for place in places(self._keys, key)]

    def _read_new(self) -> None:
        """Add the keys of batches since the last look-up."""
        bits = self._bits
        rows = self._database.execute(
            "SELECT batch, keys FROM recent WHERE batch > ? ORDER BY batch",
            (self._batches[-1] if self._batches else 0,),
        )
        for batch, stored in rows:
            keys = unpack_keys(blob(stored))
            if not keys:
                continue
            for key in keys:
                bits[key >> (_SHIFT + 3)] |= 1 << (key >> _SHIFT & 7)
            self._starts.append(len(self._keys) // _KEY_BYTES)
            self._batches.append(batch)
            self._keys += pack_keys(keys)


class RequestLookup:
    """The readers' side: finds the batches of a key. Keeps the filters of all runs in memory: 20 MiB for a log of 1 GiB."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._recent = _Recent(database)
        # The runs' filters, by the first batch of each.
        self._runs: dict[int, bytes] = {}
        self._newest = 0

    def batches(self, key: int, before: int) -> list[int]:
        """Return the batches before *before* that name *key*, ascending."""
        # The recent ones first: a batch that moves into a run meanwhile is found in both, and not in none.
        found = set(self._recent.find(key))
        self._read_new()
        for first, passing in self._runs.items():
            if first < before and passes(passing, key):
                row = self._database.execute(
                    "SELECT body FROM buckets WHERE id = ?", (first * BUCKETS + bucket_of(key),)
                ).fetchone()
                if row is not None:
                    found.update(batches_in(first, blob(row[0]), key))
        return sorted(batch for batch in found if batch < before)

    def _read_new(self) -> None:
        # In one statement: between two, the oldest may go.
        rows = self._database.execute(
            "SELECT first, passing, (SELECT min(first) FROM runs) FROM runs WHERE first > ? ORDER BY first",
            (self._newest,),
        ).fetchall()
        if not rows:
            return
        self._newest, _, oldest = rows[-1]
        self._runs = {first: passing for first, passing in self._runs.items() if first >= oldest}
        self._runs.update({first: blob(passing) for first, passing, _ in rows})
