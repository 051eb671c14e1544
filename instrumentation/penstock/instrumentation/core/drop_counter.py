"""Bounded counts by two words, for what must not be lost silently."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.proto.names import NOT_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER: Final = "other"


def count_entries(counts: Mapping[tuple[str, str], int]) -> int:
    """Return how many entries a drop account, by (reason, kind), counts."""
    return sum(count for (_, kind), count in counts.items() if kind not in NOT_ENTRIES)


class DropCounter:
    """Counts of (word, word) that are removed as they are reported. Safe from any thread.

    At most *limit* different keys are held between two reports; the rest is counted
    under ``("other", "other")``. The lock is re-entrant because a signal handler may
    count on the thread that is counting.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._lock = threading.RLock()
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, first: str, second: str, count: int = 1) -> None:
        """Add *count* to (*first*, *second*)."""
        key = (first, second)
        with self._lock:
            if key not in self._counts and len(self._counts) >= self._limit:
                key = (OTHER, OTHER)
            self._counts[key] = self._counts.get(key, 0) + count

    def drain(self) -> dict[tuple[str, str], int]:
        """Return all counts and remove them."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def snapshot(self) -> dict[tuple[str, str], int]:
        """Return a copy of the counts."""
        with self._lock:
            return dict(self._counts)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def reset(self) -> None:
        """Remove all counts and make the lock anew: for a child after a fork."""
        self._lock = threading.RLock()
        self._counts = {}
