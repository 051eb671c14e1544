"""The order that takes a server out of rotation: for a time, by a clock that only the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import Session, Settings
from penstock.instrumentation.core.rotation import LONGEST, Rotation


class Clock:
    """Seconds that only a test counts on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Read it."""
        return self.now


@pytest.mark.parametrize(
    ("ordered", "passed", "left"),
    [
        (30.0, 0.0, 30.0),
        (30.0, 29.0, 1.0),
        (30.0, 30.0, 0.0),
        (30.0, 31.0, 0.0),
        (0.0, 0.0, 0.0),
        (LONGEST, 0.0, LONGEST),
        (2.0**32, 0.0, LONGEST),
        (-1.0, 0.0, 0.0),
    ],
)
def test_an_order_ends_by_itself(ordered: float, passed: float, left: float) -> None:
    """It holds for its time, at most for a minute."""
    clock = Clock()
    rotation = Rotation(clock)
    assert rotation.seconds_left() == 0
    rotation.out_for(ordered)
    clock.now += passed
    assert rotation.seconds_left() == left


def test_a_later_order_replaces_the_earlier() -> None:
    """Whether it is longer, shorter, or its end."""
    clock = Clock()
    rotation = Rotation(clock)
    for seconds in (20.0, 60.0, 5.0, 0.0, 10.0):
        rotation.out_for(seconds)
        assert rotation.seconds_left() == seconds
    rotation.end()
    assert rotation.seconds_left() == 0


# An order of so many seconds, or so many seconds that pass.
_ORDERS = st.tuples(st.just("order"), st.integers(0, 2**32 - 1))
_STEPS = st.tuples(st.just("pass"), st.integers(0, 90))


@given(st.lists(st.one_of(_ORDERS, _STEPS), max_size=30))
def test_only_the_last_order_and_the_time_since_count(happened: list[tuple[str, int]]) -> None:
    """And nothing that happens makes it longer than a minute without another order."""
    clock = Clock()
    rotation = Rotation(clock)
    order = since = 0
    for what, number in happened:
        if what == "order":
            rotation.out_for(number)
            order, since = number, 0
        else:
            clock.now += number
            since += number
        assert rotation.seconds_left() == max(0, min(order, LONGEST) - since)


def test_a_passive_process_is_in_rotation() -> None:
    """Off, stopped, and while the kill switch holds; the order's time goes on meanwhile."""
    clock = Clock()
    session = Session()
    session.rotation = Rotation(clock)
    session.rotation.out_for(30)
    assert session.seconds_out_of_rotation == 0
    session.configure(Settings("unix:///run/penstock/ingest.sock"))
    assert session.seconds_out_of_rotation == 30
    session.set_paused("policy", paused=True)
    assert session.seconds_out_of_rotation == 0
    clock.now += 10
    session.set_paused("policy", paused=False)
    assert session.seconds_out_of_rotation == 20
    session.stop()
    assert session.seconds_out_of_rotation == 0


def test_a_forked_child_begins_without_an_order() -> None:
    """The order was its parent's."""
    session = Session()
    session.configure(Settings("unix:///run/penstock/ingest.sock"))
    session.rotation.out_for(60)
    session.after_fork_in_child(grpc_forbidden=False)
    assert session.active
    assert session.seconds_out_of_rotation == 0
