"""The recompute budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.rules.recompute_budget import RecomputeBudget

from tests.support.manual_clock import SECOND, ManualClock


@pytest.fixture
def clock():
    """Give a clock that stands still."""
    return ManualClock()


@pytest.fixture
def budget(clock):
    """Give a full budget of 100 tokens per second, for requests of at most 250."""
    budget = RecomputeBudget(clock)
    budget.configure(100, 250)
    return budget


def test_unlimited_until_configured(clock):
    """Without a rate everything passes and there is no level to tell."""
    budget = RecomputeBudget(clock)
    assert budget.acquire(10**12)
    assert (budget.available(), budget.rate, budget.capacity) == (None, None, 0)


@pytest.mark.parametrize(
    ("rate", "largest", "capacity"),
    [(100, 250, 250), (100, 50, 100), (100, None, 100), (100, 0, 100), (0, 250, 0), (0, None, 0)],
)
def test_capacity(clock, rate, largest, capacity):
    """One second's worth, at least the largest permitted request; a rate of 0 permits none."""
    budget = RecomputeBudget(clock)
    budget.configure(rate, largest)
    assert (budget.capacity, budget.available()) == (capacity, capacity)
    assert budget.acquire(capacity)
    assert not budget.acquire(1)


def test_refills_with_time_up_to_capacity(clock, budget):
    """What is taken comes back at the rate, and no more than the capacity is kept."""
    assert budget.acquire(250)
    clock.advance(0.5)
    assert budget.available() == 50
    assert not budget.acquire(51)
    assert budget.acquire(50)
    clock.advance(3600)
    assert budget.available() == 250


def test_refusal_takes_nothing(clock, budget):
    """A request that does not fit leaves the level as it is."""
    assert budget.acquire(200)
    assert not budget.acquire(51)
    assert budget.acquire(50)


def test_nothing_lost_always_passes(budget):
    """A request that lost no token needs no room."""
    assert budget.acquire(250)
    assert budget.acquire(0)


def test_raised_rate_hands_out_nothing(clock, budget):
    """A larger budget starts from the level of the old one, and fills faster."""
    assert budget.acquire(250)
    clock.advance(1)
    budget.configure(1000, 250)
    assert budget.available() == 100
    clock.advance(0.1)
    assert budget.available() == 200


def test_lowered_rate_cuts_the_level(clock, budget):
    """A smaller budget keeps at most its own capacity."""
    budget.configure(10, None)
    assert budget.available() == 10


def test_same_limits_again_change_nothing(clock, budget):
    """A push that repeats the limits does not touch the level."""
    assert budget.acquire(200)
    budget.configure(100, 250)
    assert budget.available() == 50


def test_a_clock_that_goes_back_brings_nothing(clock, budget):
    """A step back in time neither takes nor gives."""
    assert budget.acquire(250)
    clock.advance(-5)
    assert budget.available() == 0
    clock.advance(6)
    assert budget.available() == 100


@pytest.mark.parametrize(("rate", "largest"), [(-1, None), (1, -1)])
def test_negative_limits_are_refused(clock, rate, largest):
    """A negative limit is an error that names the values, and changes nothing."""
    budget = RecomputeBudget(clock)
    with pytest.raises(ValueError, match=r"cannot be negative: .*-1"):
        budget.configure(rate, largest)
    assert budget.rate is None


@given(
    rate=st.integers(0, 10_000),
    largest=st.none() | st.integers(0, 20_000),
    steps=st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 30_000)), max_size=40),
)
def test_conservation(rate, largest, steps):
    """From any moment on at most the capacity and what the rate brought since then is taken, to the token."""
    clock = ManualClock()
    budget = RecomputeBudget(clock)
    budget.configure(rate, largest)
    taken = []
    for pause, tokens in steps:
        clock.now += pause
        if budget.acquire(tokens):
            taken.append((clock.now, tokens))
        available = budget.available()
        assert available is not None
        assert 0 <= available <= budget.capacity
    for first, (begin, _) in enumerate(taken):
        for last, (end, _) in enumerate(taken[first:], first):
            total = sum(tokens for _, tokens in taken[first : last + 1])
            assert total * SECOND <= budget.capacity * SECOND + rate * (end - begin)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, SECOND), st.integers(0, 1000), st.integers(0, 2000)), min_size=1
    )
)
def test_changes_of_the_rate_hand_out_nothing(changes):
    """However often the rate changes, what is taken is what the rates brought, over the first capacity."""
    clock = ManualClock()
    budget = RecomputeBudget(clock)
    budget.configure(changes[0][1], None)
    allowed, taken = budget.capacity * SECOND, 0
    for pause, rate, tokens in changes:
        allowed += pause * budget.rate
        clock.now += pause
        budget.configure(rate, None)
        taken += tokens if budget.acquire(tokens) else 0
        assert taken * SECOND <= allowed


@given(
    rate=st.integers(0, 1000),
    largest=st.none() | st.integers(0, 2000),
    taken=st.integers(0, 2000),
    tokens=st.integers(0, 3000),
)
def test_the_wait_is_exact(rate, largest, taken, tokens):
    """After it the tokens are there, a nanosecond before they are not; what never fits has none."""
    clock = ManualClock()
    budget = RecomputeBudget(clock)
    assert budget.wait_ns(tokens) == 0
    budget.configure(rate, largest)
    budget.acquire(taken)
    wait = budget.wait_ns(tokens)
    if wait is None:
        assert tokens > budget.capacity
        return
    if wait:
        clock.now += wait - 1
        assert not budget.acquire(tokens)
        clock.now += 1
    assert budget.acquire(tokens)
