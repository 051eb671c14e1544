"""Bounds on who may come in and how fast, on clocks that the tests set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import LimitError
from penstock.agent.ingest import admission
from penstock.agent.ingest.admission import MAX_ENGINES, MAX_STREAMS, Admission, resident_bytes
from penstock.agent.ingest.pace import Bucket
from penstock.agent.model import EngineKey

MIB = 1 << 20


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def limit_of(call, *args, **kwargs):
    """Return the word of the limit that a call meets; empty if it meets none."""
    try:
        call(*args, **kwargs)
    except LimitError as error:
        return error.limit
    return ""


def test_engines_that_are_known_always_come_in():
    """At the limit a new name is refused, and one that the log has named is not."""
    known = [EngineKey("", str(number)) for number in range(MAX_ENGINES - 1)]
    door = Admission(known)
    assert limit_of(door.check_source, EngineKey("", "new"), new=True) == ""
    assert limit_of(door.check_source, EngineKey("", "newer"), new=True) == "engines"
    assert limit_of(door.check_source, known[0], new=True) == ""
    assert limit_of(door.check_source, EngineKey("", "new"), new=True) == ""


def test_new_sources_have_a_rate():
    """Many at once, as when a node starts; then some a second. One that comes back is no new one."""
    clock = Clock()
    door = Admission(clock=clock)
    key = EngineKey("", "0")
    for _ in range(admission.NEW_SOURCES_BURST):
        door.check_source(key, new=True)
    assert limit_of(door.check_source, key, new=True) == "sources"
    assert limit_of(door.check_source, key, new=False) == ""
    clock.now += 1 / admission.NEW_SOURCES_PER_SECOND
    assert limit_of(door.check_source, key, new=True) == ""
    assert limit_of(door.check_source, key, new=True) == "sources"


def test_streams_are_counted():
    """Up to the limit and no further."""
    door = Admission()
    assert limit_of(door.check_stream, MAX_STREAMS - 1) == ""
    assert limit_of(door.check_stream, MAX_STREAMS) == "streams"


def test_short_of_memory_nothing_is_taken():
    """The sentence says how much; a look is taken a few times a second only, and it passes."""
    clock, used, looks = Clock(), [400 * MIB], []
    door = Admission(memory_limit=512 * MIB, clock=clock, resident=lambda: looks.append(clock.now) or used[0])
    for _ in range(100):
        door.check_memory()
    assert len(looks) == 1
    used[0] = 600 * MIB
    clock.now += 1
    with pytest.raises(LimitError, match="the agent holds 600 MiB, its limit is 512 MiB; try again later"):
        door.check_memory()
    assert limit_of(door.check_stream, 0) == "memory"
    used[0] = 400 * MIB
    clock.now += 1
    assert limit_of(door.check_stream, 0) == ""


def test_resident_bytes_are_this_process():
    """More than an interpreter needs, less than a machine has."""
    assert 8 * MIB < resident_bytes() < 64 << 30


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 500)), max_size=50))
def test_a_bucket_gives_no_more_than_its_rate(steps):
    """In any stretch of time: the burst and what the rate gives, and the debt is told truly."""
    clock = Clock()
    bucket = Bucket(10, 100, clock)
    taken, start = 0.0, clock.now
    for pause, amount in steps:
        clock.now += pause
        if bucket.try_take(amount):
            taken += amount
        assert taken <= 100 + 10 * (clock.now - start) + 1e-6
    debt = bucket.owe(1_000)
    assert debt > 0
    clock.now += debt
    assert bucket.owe(0) == pytest.approx(0, abs=1e-6)
