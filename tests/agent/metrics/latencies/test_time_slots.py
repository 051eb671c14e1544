"""Counts in slots of time: the same for any order of the entries, bounded, finer the newer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.metrics.latencies.time_slots import FINEST_NANO, KEPT_SECONDS, TimeSlots

from tests.support.agent.batches import TIME
from tests.support.agent.metric_logs import SECOND, UNTIMED

_ENTRIES = st.lists(st.tuples(st.integers(TIME, TIME + 7200 * SECOND), st.integers(0, 3)), max_size=60)


def _filled(entries: list[tuple[int, int]]) -> TimeSlots:
    slots = TimeSlots(4)
    for time, bucket in entries:
        slots.add(time, {bucket: 1})
    return slots


@UNTIMED
@given(_ENTRIES, st.randoms())
def test_the_order_of_entries_does_not_matter(entries: list[tuple[int, int]], random: object) -> None:
    """Nor does a restart between any two of them."""
    whole = _filled(entries).dump()
    shuffled = entries.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _filled(shuffled).dump() == whole
    half = TimeSlots.load(4, json.loads(json.dumps(_filled(entries[: len(entries) // 2]).dump())))
    for time, bucket in entries[len(entries) // 2 :]:
        half.add(time, {bucket: 1})
    assert half.dump() == whole


@UNTIMED
@given(_ENTRIES)
def test_nothing_is_counted_twice_or_lost_within_75_minutes(entries: list[tuple[int, int]]) -> None:
    """What is older than the newest entry by less than 75 minutes is there, by bucket."""
    slots = _filled(entries)
    newest = max((time for time, _ in entries), default=0)
    found = slots.sum(0, newest + 3600 * SECOND)
    for bucket in range(4):
        times = [time for time, each in entries if each == bucket]
        assert sum(time > newest - 75 * 60 * SECOND for time in times) <= found[bucket]
        assert found[bucket] <= sum(time >= newest - (KEPT_SECONDS + 300) * SECOND for time in times)


@UNTIMED
@given(_ENTRIES, st.integers(0, 7200))
def test_a_window_has_what_ended_in_it(entries: list[tuple[int, int]], seconds: int) -> None:
    """Adjoining windows share nothing, and their sum is the whole."""
    slots, end = _filled(entries), TIME + 9000 * SECOND
    edge = TIME + seconds * SECOND
    both = zip(slots.sum(0, edge), slots.sum(edge, end), strict=True)
    assert [before + after for before, after in both] == slots.sum(0, end)


def test_the_number_of_slots_is_bounded() -> None:
    """An entry each second for three hours."""
    slots = TimeSlots(1)
    for second in range(3 * 3600):
        slots.add(TIME + second * SECOND, {0: 1})
    assert len(slots.dump()[1]) <= 45


def test_the_last_minute_has_a_resolution_of_15_seconds() -> None:
    """What ended 80 seconds ago is not in it."""
    slots = TimeSlots(1)
    now = TIME // FINEST_NANO * FINEST_NANO
    slots.add(now - 80 * SECOND, {0: 1})
    slots.add(now - 59 * SECOND, {0: 2})
    slots.add(now, {0: 4})
    assert slots.sum(now - 60 * SECOND, now + 60 * SECOND) == [6]


def test_a_count_stops_at_the_largest() -> None:
    """Instead of an error, which would cost the batch."""
    slots = TimeSlots(1)
    for second in (0, 20):
        slots.add(TIME + second * SECOND, {0: 1 << 32})
    slots.add(TIME + 1000 * SECOND, {0: 1})
    assert slots.sum(0, TIME + 2000 * SECOND)[0] <= 2 * ((1 << 32) - 1) + 1


@pytest.mark.parametrize(
    "state", [None, [1], [1, [[9, 1, []]]], [1, [[0, 1, [[99, 1]]]]], [1, [[0, 1, [[0, -1]]]]]]
)
def test_a_state_of_another_shape_is_refused(state: object) -> None:
    """With one of the errors after which the aggregator begins with empty windows."""
    with pytest.raises((ValueError, TypeError, IndexError, OverflowError)):
        TimeSlots.load(4, state)
