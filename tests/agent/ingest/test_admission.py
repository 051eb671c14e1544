"""Bounds on who may come in and how fast, on clocks that the tests set."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.aio import ByteSemaphore, TokenBucket
from penstock.agent.errors import LimitError
from penstock.agent.ingest.admission import (
    _MAX_OWN,
    MAX_ENGINES,
    MAX_STREAMS,
    Admission,
    give_back,
    resident_bytes,
)
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
    known = {EngineKey("", str(number)) for number in range(MAX_ENGINES - 1)}
    admission = Admission(lambda: known)
    assert refusal(admission, "new") == ""
    known.add(EngineKey("", "new"))
    assert refusal(admission, "newer") == "engines"
    assert refusal(admission, "0") == ""
    assert refusal(admission, "new") == ""
    # It has gone, and left nothing in the log.
    known.remove(EngineKey("", "new"))
    assert refusal(admission, "newer") == ""


def refusal(admission, engine="0", *, core=False, size=500):
    """Let a source in that is new, unless its *size* is 0; return the word of the limit that it meets."""
    return limit_of(admission.check_source, EngineKey("", engine), core=core, new_bytes=size)


def flood(admission, engine, **fields):
    """Come as ever new processes of one engine until that is refused; return how many came in."""
    return next(number for number in range(100_000) if refusal(admission, engine, **fields))


def test_new_sources_have_a_rate():
    """Thousands at once, as when a node starts; then some a second. One that comes back is no new one."""
    clock = Clock()
    admission = Admission(clock=clock)
    assert 4_000 < flood(admission, "0") < 5_000
    assert refusal(admission, size=0) == ""
    clock.now += 1
    assert 5 < flood(admission, "0") < 50


def test_long_hellos_count_as_more():
    """What the log keeps of them is bounded in bytes: together less than the smallest state directory has."""
    admission = Admission()
    came = sum(
        flood(admission, str(number), core=core, size=8 << 10) for number in range(300) for core in (0, 1)
    )
    assert came * (8 << 10) < 17 * MIB


def test_a_flood_of_new_sources_keeps_no_other_engine_out():
    """A pod's worth of processes of another engine come in, and of the flooded engine its EngineCore."""
    admission = Admission()
    flood(admission, "flooded")
    assert [refusal(admission, "honest", core=core) for core in (True, *[False] * 8)] == [""] * 9
    assert refusal(admission, "flooded", core=True) == ""
    assert refusal(admission, "flooded") == "sources"


def test_made_up_names_do_not_grow_the_memory():
    """What is full again is forgotten; when there is no room for more, all that is shared is left."""
    clock = Clock()
    admission = Admission(clock=clock)
    for number in range(3 * _MAX_OWN):
        assert refusal(admission, str(number)) == ""
        assert len(admission._own) <= _MAX_OWN
    clock.now += 3_600
    assert refusal(admission, "again") == ""
    assert len(admission._own) == 1


def test_streams_are_counted():
    """Up to the limit and no further."""
    admission = Admission()
    assert limit_of(admission.check_stream, MAX_STREAMS - 1) == ""
    assert limit_of(admission.check_stream, MAX_STREAMS) == "streams"


def test_short_of_memory_nothing_is_taken():
    """The sentence says how much; a look is taken now and then, by time and by bytes, and it passes."""
    clock, used, looks = Clock(), [400 * MIB], []

    def resident() -> int:
        looks.append(clock.now)
        return used[0]

    admission = Admission(memory_limit=512 * MIB, clock=clock, resident=resident)
    for _ in range(100):
        admission.check_memory()
    assert len(looks) == 1
    for _ in range(8):
        admission.check_memory(MIB)
    assert len(looks) == 3
    used[0] = 600 * MIB
    clock.now += 1
    with pytest.raises(LimitError, match="the agent holds 600 MiB, its limit is 512 MiB; retry later"):
        admission.check_memory()
    assert limit_of(admission.check_stream, 0) == "memory"
    assert admission.look_at_memory() == (
        "the agent holds 600 MiB and --memory-limit is 512 MiB: it takes nothing from engines; give it 704MiB or more"
    )
    used[0] = 400 * MIB
    clock.now += 1
    # Also where no engine asks.
    assert admission.look_at_memory() == ""
    assert limit_of(admission.check_stream, 0) == ""


def test_what_is_free_inside_is_given_back_first():
    """What the allocator keeps is no reason to refuse: it might keep it for ever."""
    used, relieved = [600 * MIB], []

    def relieve():
        relieved.append(used[0])
        used[0] = 400 * MIB

    admission = Admission(memory_limit=512 * MIB, resident=lambda: used[0], relieve=relieve)
    assert limit_of(admission.check_stream, 0) == ""
    assert relieved == [600 * MIB]


def test_while_memory_stays_short_little_is_done_about_it():
    """What relieves it looks at every object, on the loop: once when the limit is crossed, then every half minute."""
    clock, used, relieved = Clock(), [600 * MIB], []
    admission = Admission(
        memory_limit=512 * MIB,
        clock=clock,
        resident=lambda: used[0],
        relieve=lambda: relieved.append(clock.now),
    )
    begun = clock.now
    for _ in range(4 * 60):
        assert admission.look_at_memory()
        clock.now += 0.25
    assert relieved == [begun, begun + 30]
    # It goes up and down across the limit.
    relieved.clear()
    for turn in range(80):
        used[0] = (400, 600)[turn % 2] * MIB
        admission.look_at_memory()
        clock.now += 0.25
    assert len(relieved) <= 11


def test_memory_is_given_back():
    """A real process that has used much and freed it holds less afterwards."""
    blocks = [bytes(4_000) for _ in range(20_000)]
    last = blocks[-1]
    high = resident_bytes()
    blocks.clear()
    give_back()
    assert resident_bytes() < high - 40 * MIB
    assert len(last) == 4_000


def test_resident_bytes_are_this_process():
    """More than an interpreter needs, less than a machine has."""
    assert 8 * MIB < resident_bytes() < 64 << 30


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 500)), max_size=50))
def test_a_bucket_gives_no_more_than_its_rate(steps):
    """In any interval a bucket gives at most its burst and its rate; the debt is exact."""
    clock = Clock()
    bucket = TokenBucket(10, 100, clock)
    taken, start = 0.0, clock.now
    for pause, amount in steps:
        clock.now += pause
        if bucket.try_take(amount):
            taken += amount
        assert taken <= 100 + 10 * (clock.now - start) + 1e-6
    debt = bucket.debt(1_000)
    assert debt > 0
    clock.now += debt
    assert bucket.debt(0) == pytest.approx(0, abs=1e-6)


async def test_a_hand_holds_so_much_at_a_time():
    """In the order of coming: a small one does not overtake a large one. One that is too large goes alone."""
    semaphore, held, most, order = ByteSemaphore(10), 0, 0, []

    async def work(number, size):
        nonlocal held, most
        async with semaphore.reserve(size):
            order.append(number)
            held += size
            most = max(most, held)
            for _ in range(3):
                await asyncio.sleep(0)
            held -= size

    sizes = [4, 4, 9, 1, 25, 1, 10]
    await asyncio.gather(*(work(number, size) for number, size in enumerate(sizes)))
    assert order == list(range(len(sizes)))
    assert most == 25
    assert held == 0


async def test_a_hand_is_free_after_an_error_or_a_cancellation():
    """Of the holder, and of one that waited in vain."""
    semaphore = ByteSemaphore(10)

    async def fail():
        async with semaphore.reserve(10):
            waiting = asyncio.ensure_future(semaphore.reserve(10).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    async with asyncio.timeout(60), semaphore.reserve(10):
        pass
