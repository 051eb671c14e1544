"""Quantiles of durations in windows of time."""

from __future__ import annotations

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.durations import BOUNDS, BUCKETS, quantile
from penstock.agent.metrics.latencies.time_slots import (
    FINEST_NANO,
    DurationWindow,
    DurationWindows,
    TimeSlots,
    duration_windows,
)

from tests.support.agent.batches import TIME
from tests.support.agent.metric_logs import SECOND, UNTIMED

_MS = 1_000_000
_NOW = TIME // FINEST_NANO * FINEST_NANO


def _add(slots: TimeSlots, duration: int, count: int, seconds_ago: int) -> None:
    slots.add(_NOW - seconds_ago * SECOND, {bisect_left(BOUNDS, duration): count})


@UNTIMED
@given(st.lists(st.integers(50_000, 900 * SECOND), min_size=1, max_size=200), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_in_the_bucket_of_the_exact_one(durations: list[int], ratio: float) -> None:
    """So it is at most 26 % off, and 13 % on average."""
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bisect_left(BOUNDS, duration)] += 1
    exact = sorted(durations)[max(0, math.ceil(ratio * len(durations)) - 1)]
    bucket = bisect_left(BOUNDS, exact)
    assert BOUNDS[bucket - 1] <= quantile(counts, ratio) * 1e9 * 1.000001
    assert quantile(counts, ratio) * 1e9 <= BOUNDS[bucket] * 1.000001


@pytest.mark.parametrize("duration", [1, 1000 * 3600 * SECOND])
def test_durations_beyond_the_bounds_are_counted(duration: int) -> None:
    """As the lowest and the highest that can be told."""
    slots = TimeSlots(BUCKETS)
    _add(slots, duration, 1, 0)
    found = duration_windows(slots, _NOW).last_minute
    assert found.count == 1
    assert 0 <= found.p50 <= BOUNDS[-1] / 1e9


def test_each_duration_is_in_the_windows_of_its_end() -> None:
    """The last minute is a part of the last 15; the hour before is not."""
    slots = TimeSlots(BUCKETS)
    _add(slots, 50 * _MS, 100, 40 * 60)
    _add(slots, 60 * _MS, 10, 10 * 60)
    _add(slots, 6600 * _MS, 10, 5)
    found = duration_windows(slots, _NOW)
    counts = (found.last_minute.count, found.last_15_minutes.count, found.hour_before.count)
    assert counts == (10, 20, 100)
    assert found.last_minute.p50 == pytest.approx(6.6, rel=0.26)
    assert found.last_15_minutes.p99 == pytest.approx(6.6, rel=0.26)
    assert found.hour_before.p99 == pytest.approx(0.05, rel=0.26)


def test_windows_without_a_duration_are_empty() -> None:
    """Also those of a peer that has been idle for hours."""
    slots = TimeSlots(BUCKETS)
    assert duration_windows(slots, _NOW) == DurationWindows()
    _add(slots, 50 * _MS, 1, 3 * 3600)
    assert duration_windows(slots, _NOW) == DurationWindows()
    assert DurationWindow() == DurationWindow(0, 0.0, 0.0)
