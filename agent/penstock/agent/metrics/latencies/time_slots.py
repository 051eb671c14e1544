"""Counts by bucket in slots of time, finer the newer: 15 seconds, a minute, five minutes; and quantiles of durations in windows of them.

Which slot an entry belongs to follows from its time and the newest time alone, so the state is the same for any order
of the entries. Pure.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.agent import limits
from penstock.agent.durations import quantile
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FINEST_NANO: Final = 15 * NANOS
"""Width of the newest slots."""

KEPT_SECONDS: Final = 80 * 60
"""Entries that are older than the newest one by more are not kept."""


class Level(NamedTuple):
    """Slots of one width.

    Attributes:
        slot_nano: the width of a slot.
        block_nano: that of the blocks that move to the next level as a whole; those of the last level are dropped.
        blocks: how many blocks before the newest one stay.

    """

    slot_nano: int
    block_nano: int
    blocks: int


Levels: TypeAlias = tuple[Level, ...]
"""The finest first."""

_NEWEST: Final = (Level(FINEST_NANO, 60 * NANOS, 1), Level(60 * NANOS, 300 * NANOS, 3))
HOUR: Final[Levels] = (*_NEWEST, Level(300 * NANOS, 300 * NANOS, KEPT_SECONDS // 300))
"""At most 45 slots, of 80 minutes."""

DAY: Final[Levels] = (*_NEWEST, Level(3600 * NANOS, 3600 * NANOS, 24))
"""At most 53 slots, of 24 hours."""

QUARTER: Final[Levels] = (*_NEWEST, Level(300 * NANOS, 300 * NANOS, 0))
"""At most 28 slots, of 15 to 20 minutes: what is older is dropped."""

COUNTS: Final = "I"
"""Entries are counted in 32 bits: half the memory of 64, and no slot of minutes counts more."""

SUMS: Final = "Q"
"""Bytes are summed in 64 bits: at 400 GB/s, five minutes of them overflow 32 bits even as KiB."""
_MINUTE, _QUARTER, _HOUR = 60 * NANOS, 15 * 60 * NANOS, 60 * 60 * NANOS


class TimeSlots:
    """Counts of *size* buckets in each slot; as many slots as *widths* says.

    A count stops at the largest of its type: *counts* is `COUNTS` or `SUMS`.

    Attributes:
        newest: time of the newest entry, nanoseconds.

    """

    __slots__ = ("_empty", "_levels", "_most", "_size", "_widths", "newest")

    def __init__(self, size: int, widths: Levels = HOUR, counts: str = COUNTS) -> None:
        self._size = size
        self._widths = widths
        self._empty = array(counts, [0]) * size
        self._most = (1 << 8 * self._empty.itemsize) - 1
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
                slot[bucket] = min(slot[bucket] + number, self._most)

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
                    slot = slots[index] = self._empty[:]
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
                    sums = (min(both, self._most) for both in map(add, wider, counts))
                    wider[:] = array(counts.typecode, sums)

    def dump(self) -> list[Any]:
        """Return the state for JSON: the newest time, then level, index and non-zero counts of each slot."""
        return [self.newest, [[level, index, _pairs(counts)] for level, index, counts in self._all()]]

    def _all(self) -> Iterator[tuple[int, int, array[int]]]:
        for level, slots in enumerate(self._levels):
            for index in sorted(slots):
                yield level, index, slots[index]

    @classmethod
    def load(cls, size: int, state: Any, widths: Levels = HOUR, counts: str = COUNTS) -> TimeSlots:
        """Return what :meth:`dump` described.

        Raises:
            ValueError, TypeError, LookupError, OverflowError: it is of another shape.

        """
        found = cls(size, widths, counts)
        found.newest, rows = state
        for level, index, pairs in rows:
            slot = found._levels[level][index] = found._empty[:]
            for bucket, number in pairs:
                slot[bucket] = number
        return found


def _pairs(counts: array[int]) -> list[tuple[int, int]]:
    return [(bucket, number) for bucket, number in enumerate(counts) if number]


@dataclass(frozen=True, slots=True)
class DurationWindow:
    """The durations of one window; the quantiles, in seconds, are 0 without a count."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class DurationWindows:
    """The windows before one moment.

    Attributes:
        hour_before: the 60 minutes before ``last_15_minutes``.

    """

    last_minute: DurationWindow = DurationWindow()
    last_15_minutes: DurationWindow = DurationWindow()
    hour_before: DurationWindow = DurationWindow()

    @property
    def newest(self) -> float:
        """The median of now, seconds: of the last minute, or of the last 15 where that has too few; 0 without any."""
        minute = self.last_minute
        return minute.p50 if minute.count >= limits.MEDIAN_COUNT else self.last_15_minutes.p50


def duration_windows(slots: TimeSlots, now: int) -> DurationWindows:
    """Return the windows before *now*, nanoseconds; their edges are those of the slots."""
    if not slots.newest:
        return DurationWindows()
    later = now + _HOUR
    return DurationWindows(
        _window(slots.sum(now - _MINUTE, later)),
        _window(slots.sum(now - _QUARTER, later)),
        _window(slots.sum(now - _QUARTER - _HOUR, now - _QUARTER)),
    )


def _window(counts: list[int]) -> DurationWindow:
    total = sum(counts)
    if not total:
        return DurationWindow()
    return DurationWindow(total, quantile(counts, 0.5), quantile(counts, 0.99))
