"""The orders of an engine: a pure function of all orders and the present."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Selection, Target, parse_labels
from penstock.agent.policy.orders import timed_orders

from tests.support.policy.orders import SECOND, fault_drill, quarantine_order, select

_TARGETS = [Target(EngineKey("", name), "tiny", {"role": role}) for name, role in (("0", "a"), ("1", "b"))]
_A, _B = _TARGETS

_ORDERS = st.lists(
    st.tuples(
        st.sampled_from(["p:1", "p:2"]),
        st.sampled_from(["", "role=a", "role=b"]),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=8,
)


def test_an_order_is_for_the_selected_engines_until_it_ends() -> None:
    """An order is due for selected engines, before its end."""
    order = quarantine_order(selection=select("role=a"))
    drill = fault_drill(selection=select("role=a"))
    assert timed_orders.quarantines_for([order], _A, 0) == (order,)
    assert timed_orders.quarantines_for([order], _B, 0) == ()
    assert timed_orders.quarantines_for([order], _A, 60 * SECOND) == ()
    assert timed_orders.drills_for([drill], _A, 60 * SECOND - 1) == (drill,)
    assert timed_orders.drills_for([drill], _B, 0) == ()
    assert timed_orders.drills_for([drill], _A, 60 * SECOND) == ()


def test_a_lift_outlives_itself() -> None:
    """An order that a lift ended stays ended after the lift's end; on other engines it stays in force."""
    added = quarantine_order("add", seconds=3600)
    lifted = quarantine_order("lift", seconds=60, quarantined=False, selection=select("role=a"))
    both = [added, lifted]
    assert timed_orders.quarantines_for(both, _A, 0) == (lifted,)
    assert timed_orders.quarantines_for(both, _A, 61 * SECOND) == ()
    assert timed_orders.quarantines_for(both, _B, 61 * SECOND) == (added,)
    assert timed_orders.kept(both, 61 * SECOND) == both
    assert timed_orders.kept(both, 3601 * SECOND) == []


def test_a_newer_order_about_the_same_takes_the_place_of_the_older() -> None:
    """Of several orders about one subject the newest is kept."""
    clicks = [quarantine_order(str(number), began=number) for number in range(100)]
    assert [order.id for order in timed_orders.kept(clicks, 100)] == ["99"]


@given(_ORDERS, st.integers(0, 5))
def test_what_is_left_out_changes_nothing(rows: list[tuple[str, str, int, bool]], now: int) -> None:
    """Pruned orders change no engine's orders, at any time."""
    whole = [
        quarantine_order(
            str(number), peer, seconds=seconds, selection=select(labels), quarantined=quarantined
        )
        for number, (peer, labels, seconds, quarantined) in enumerate(rows)
    ]
    rest = timed_orders.kept(whole, now * SECOND)
    for target in _TARGETS:
        for later in range(now, 6):
            assert timed_orders.quarantines_for(rest, target, later * SECOND) == timed_orders.quarantines_for(
                whole, target, later * SECOND
            )


@pytest.mark.parametrize(("now", "left"), [(-100, 60), (0, 60), (20, 40), (60, 0), (1000, 0)], ids=str)
def test_what_is_left_never_grows(now: int, left: int) -> None:
    """The time left never exceeds the time to live, also after the clock is set back."""
    assert fault_drill(seconds=60).left_nano(now * SECOND) == left * SECOND


def test_what_is_written_is_read_again() -> None:
    """All fields and each kind of selection survive storage."""
    selection = Selection(
        parse_labels("role=decode,tier in (a,b),!canary"),
        ("llama-*",),
        frozenset({EngineKey("decode", "0"), EngineKey("", "")}),
    )
    order = quarantine_order(selection=selection, quarantined=False)
    drill = fault_drill(selection=selection, rate=0.125, peer="[::1]:5600", delay_nano=5, reason="why")
    assert timed_orders.read_quarantine(timed_orders.document(order)) == order
    assert timed_orders.read_drill(timed_orders.document(drill)) == drill
