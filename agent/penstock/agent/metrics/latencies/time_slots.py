"""Counts by bucket in slots of time, finer the newer: 15 seconds, a minute, five minutes. Pure.

Which slot an entry belongs to follows from its time and the newest time alone, so the state is the same for any order
of the entries.
"""

from __future__ import annotations

from array import array
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FINEST_NANO: Final = 15 * NANOS
"""Width of the newest slots."""

KEPT_SECONDS: Final = 80 * 60
"""Entries that are older than the newest one by more are not kept."""

Levels: TypeAlias = tuple[tuple[int, int, int], ...]
"""By level: the width of a slot, the width of the blocks that move to the next level as a whole, and how many blocks before the
newest one stay. The last level's blocks are dropped."""

_NEWEST: Final = ((FINEST_NANO, 60 * NANOS, 1), (60 * NANOS, 300 * NANOS, 3))
HOUR: Final[Levels] = (*_NEWEST, (300 * NANOS, 300 * NANOS, KEPT_SECONDS // 300))
"""At most 45 slots, of 80 minutes."""

DAY: Final[Levels] = (*_NEWEST, (3600 * NANOS, 3600 * NANOS, 24))
"""At most 53 slots, of 24 hours."""

# Unsigned, 32 bits.
_COUNT: Final = "I"
_MOST: Final = (1 << 32) - 1


class TimeSlots:
    """Counts of *size* buckets in each slot; as many slots as *widths* says.

    Attributes:
        newest: time of the newest entry, nanoseconds.

    """

    __slots__ = ("_levels", "_size", "_widths", "newest")

    def __init__(self, size: int, widths: Levels = HOUR) -> None:
        self._size = size
        self._widths = widths
        self.newest = 0
        self._levels: tuple[dict[int, array[int]], ...] = tuple({} for _ in widths)

    def add(self, time: int, counts: Mapping[int, int]) -> None:
        """Add numbers by bucket at *time*, nanoseconds; what is too old is left out."""
        if time > self.newest:
            block = self._widths[0][1]
            moved = time // block > self.newest // block
            self.newest = time
            if moved:
                self._move()
        slot = self._slot(time)
        if slot is not None:
            for bucket, number in counts.items():
                slot[bucket] = min(slot[bucket] + number, _MOST)

    def sum(self, after: int, until: int) -> list[int]:
        """Return the counts of the slots that end after *after* and not after *until*, nanoseconds."""
        found = [
            counts
            for (width, _, _), slots in zip(self._widths, self._levels, strict=True)
            for index, counts in slots.items()
            if after < (index + 1) * width <= until
        ]
        return self._total(found)

    def split(self, at: int) -> tuple[list[int], list[int]]:
        """Return the counts before and since *at*, nanoseconds: no more than 15 minutes before the newest entry.

        A slot belongs to where it ends; what has moved to the widest slots is older than 15 minutes.
        """
        *finer, widest = zip(self._widths, self._levels, strict=True)
        before: list[array[int]] = list(widest[1].values())
        since: list[array[int]] = []
        for (width, _, _), slots in finer:
            for index, counts in slots.items():
                (since if (index + 1) * width > at else before).append(counts)
        return self._total(before), self._total(since)

    def _total(self, slots: list[array[int]]) -> list[int]:
        return [sum(column) for column in zip(*slots, strict=True)] if slots else [0] * self._size

    def _slot(self, time: int) -> array[int] | None:
        for (width, block, blocks), slots in zip(self._widths, self._levels, strict=True):
            if time // block >= self.newest // block - blocks:
                index = time // width
                slot = slots.get(index)
                if slot is None:
                    slot = slots[index] = array(_COUNT, bytes(self._size * array(_COUNT).itemsize))
                return slot
        return None

    def _move(self) -> None:
        """Move what is no longer new into wider slots."""
        for (width, block, blocks), slots in zip(self._widths, self._levels, strict=True):
            first = (self.newest // block - blocks) * block
            for index in [index for index in slots if index * width < first]:
                counts = slots.pop(index)
                wider = self._slot(index * width)
                if wider is not None:
                    wider[:] = array(_COUNT, (min(both, _MOST) for both in map(add, wider, counts)))

    def dump(self) -> list[Any]:
        """Return the state for JSON: the newest time, then level, index and non-zero counts of each slot."""
        return [self.newest, [[level, index, _pairs(counts)] for level, index, counts in self._all()]]

    def _all(self) -> Iterator[tuple[int, int, array[int]]]:
        for level, slots in enumerate(self._levels):
            for index in sorted(slots):
                yield level, index, slots[index]

    @classmethod
    def load(cls, size: int, state: Any, widths: Levels = HOUR) -> TimeSlots:
        """Return what :meth:`dump` described.

        Raises:
            ValueError, TypeError, LookupError, OverflowError: it is of another shape.

        """
        found = cls(size, widths)
        found.newest, rows = state
        for level, index, pairs in rows:
            counts = found._levels[level][index] = array(_COUNT, bytes(size * array(_COUNT).itemsize))
            for bucket, number in pairs:
                counts[bucket] = number
        return found


def _pairs(counts: array[int]) -> list[tuple[int, int]]:
    return [(bucket, number) for bucket, number in enumerate(counts) if number]
