"""The index of requests on the readers' side: which batches name a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.journal.connection import blob
from penstock.agent.journal.request_index_format import (
    BUCKETS,
    RUN_KEYS,
    batches_in,
    bucket_of,
    holds,
    pack_keys,
    passes,
    unpack_keys,
)

if TYPE_CHECKING:
    import sqlite3

# Of the filter of recent keys: less than one of a hundred passes it by chance.
_BITS = 24
_SHIFT = 32 - _BITS


class _Recent:
    """The keys that are in no run yet: a filter of them, because most questions are about requests that are new."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._begin()

    def _begin(self) -> None:
        self._at = self._held = 0
        self._bits = bytearray(1 << (_BITS - 3))

    def find(self, key: int) -> list[int]:
        if self._held > 2 * RUN_KEYS:
            # Most of them have moved into runs.
            self._begin()
        self._follow()
        bit = key >> _SHIFT
        if not self._bits[bit >> 3] & (1 << (bit & 7)):
            return []
        wanted = pack_keys((key,))
        rows = self._database.execute("SELECT batch, keys FROM recent")
        return [batch for batch, keys in rows if wanted in blob(keys) and holds(keys, key)]

    def _follow(self) -> None:
        """Take the keys of the batches that have come since the last question."""
        bits = self._bits
        rows = self._database.execute(
            "SELECT batch, keys FROM recent WHERE batch > ? ORDER BY batch", (self._at,)
        )
        for batch, stored in rows:
            keys = unpack_keys(blob(stored))
            for key in keys:
                bits[key >> (_SHIFT + 3)] |= 1 << (key >> _SHIFT & 7)
            self._at = batch
            self._held += len(keys)


class Lookup:
    """Finds the batches of a key. It remembers what most keys are told apart by: 20 MiB for a log of a GiB."""

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
        self._follow()
        for first, passing in self._runs.items():
            if first < before and passes(passing, key):
                row = self._database.execute(
                    "SELECT body FROM buckets WHERE id = ?", (first * BUCKETS + bucket_of(key),)
                ).fetchone()
                if row is not None:
                    found.update(batches_in(first, blob(row[0]), key))
        return sorted(batch for batch in found if batch < before)

    def _follow(self) -> None:
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
