"""Quantiles of durations in windows of time: the last minute, the last 15, and the hour before. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.metrics.latencies.time_slots import TimeSlots

_FIRST_NANO, _PER_OCTAVE, _OCTAVES = 32_000, 3, 25
BOUNDS: Final = tuple(
    round(_FIRST_NANO * 2 ** (step / _PER_OCTAVE)) for step in range(_OCTAVES * _PER_OCTAVE + 1)
)
"""Upper bounds of the buckets, nanoseconds: 32 µs to 18 minutes, each 26 % above the one below."""

BUCKETS: Final = len(BOUNDS) + 1
_MINUTE, _QUARTER, _HOUR = 60 * NANOS, 15 * 60 * NANOS, 60 * 60 * NANOS


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


def quantile(counts: Sequence[int], ratio: float) -> float:
    """Return a quantile in seconds, between the bounds of its bucket; *counts* are of `BUCKETS`, not all 0."""
    rank = ratio * sum(counts)
    below = 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low = BOUNDS[bucket - 1] if bucket else 0
            high = BOUNDS[min(bucket, len(BOUNDS) - 1)]
            return (low + (high - low) * max(0.0, rank - below) / count) / NANOS
        below += count
    return BOUNDS[-1] / NANOS
