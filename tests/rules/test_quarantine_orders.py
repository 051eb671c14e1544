"""An operator's orders about peers, beside the automatic quarantine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from penstock.rules.circuit_breaker import Admit, BreakerState
from penstock.rules.quarantine import QuarantineOrder

from tests.support.manual_clock import SECOND
from tests.support.policy.quarantine_bench import EVERYONE, INCOMPATIBLE, REFUSED, REMOTE, RULES, Bench


def test_order_to_quarantine_needs_no_failure_and_ends():
    """An operator's word holds without a policy, for an engine's only peer, and until its time is over."""
    bench = Bench(rules=None, peers=["a"])
    bench.order(QuarantineOrder("1", "a", quarantined=True, ttl_ns=10 * SECOND))
    assert bench.admit("a") == Admit(remote=False, reason="operator")
    bench.advance(10)
    assert bench.admit("a") == REMOTE
    assert bench.story() == [
        ("a", BreakerState.CLOSED, BreakerState.OPEN, "operator"),
        ("a", BreakerState.OPEN, BreakerState.CLOSED, "expired"),
    ]


def test_order_is_withdrawn():
    """An order without a time holds until a push leaves it out."""
    bench = Bench()
    bench.order(QuarantineOrder("1", "a", quarantined=True))
    bench.advance(10**6)
    assert not bench.admit("a").remote
    bench.order()
    assert bench.admit("a") == REMOTE
    assert bench.story()[-1] == ("a", BreakerState.OPEN, BreakerState.CLOSED, "operator")


def test_repeated_push_does_not_prolong_an_order():
    """An order keeps the end that it had when it was first pushed, and does not come back after it."""
    bench = Bench()
    order = QuarantineOrder("1", "a", quarantined=True, ttl_ns=10 * SECOND)
    for _ in range(3):
        bench.order(order)
        bench.advance(6)
    assert bench.admit("a") == REMOTE
    assert len(bench.story()) == 2


@pytest.mark.parametrize("failure", [REFUSED, INCOMPATIBLE])
def test_lift_closes_and_keeps_closed(failure):
    """An order that lifts closes the circuit, holds off new quarantines while it lasts, and counting starts over."""
    bench = Bench()
    bench.break_peer("a", failure)
    bench.story()
    bench.order(QuarantineOrder("1", "a", quarantined=False, ttl_ns=10 * SECOND))
    assert bench.story() == [("a", BreakerState.OPEN, BreakerState.CLOSED, "operator")]
    bench.break_peer("a", failure)
    assert bench.admit("a").remote
    bench.advance(10)
    assert bench.admit("a") == REMOTE
    bench.break_peer("a", failure)
    assert not bench.admit("a").remote


@pytest.mark.parametrize("how", ["lift", "policy"])
def test_counting_starts_over(how):
    """What was counted before a lift, or under a policy that went, does not count after it."""
    bench = Bench()
    bench.report("a", REFUSED)
    if how == "lift":
        bench.order(QuarantineOrder("1", "a", quarantined=False, ttl_ns=SECOND))
    else:
        bench.rules(None)
        bench.rules(RULES)
    bench.advance(1)
    bench.report("a", REFUSED)
    assert bench.cut_off() == set()


def test_repeated_push_of_a_lift_closes_once():
    """A lift whose time is over does not close what came after it, however often it is pushed."""
    bench = Bench()
    lift = QuarantineOrder("1", "a", quarantined=False, ttl_ns=SECOND)
    bench.order(lift)
    bench.advance(1)
    bench.break_peer("a")
    bench.order(lift)
    assert bench.cut_off() == {"a"}


def test_lift_forgets_an_idle_incompatible_peer():
    """A remembered incompatibility can be lifted as well."""
    bench = Bench(rules=EVERYONE)
    bench.break_peer("a", INCOMPATIBLE)
    bench.advance(900)
    bench.order(QuarantineOrder("1", "a", quarantined=False, ttl_ns=SECOND))
    bench.advance(1)
    assert bench.admit("a") == REMOTE


def test_automatic_state_returns_after_an_order():
    """An incompatible peer that an operator quarantined too stays cut off when the order ends."""
    bench = Bench()
    bench.break_peer("a", INCOMPATIBLE)
    bench.order(QuarantineOrder("1", "a", quarantined=True, ttl_ns=SECOND))
    bench.advance(1)
    assert bench.admit("a") == Admit(remote=False, reason="incompatible")
    assert BreakerState.CLOSED not in {state for _, _, state, _ in bench.story()}


def test_orders_count_in_the_share():
    """What an operator cut off leaves less to the automatic ones; with none left they are let go."""
    bench = Bench()
    bench.break_peer("a")
    bench.order(QuarantineOrder("1", "b", quarantined=True))
    assert bench.cut_off() == {"b"}
    bench.break_peer("a")
    assert bench.cut_off() == {"b"}


def test_a_lower_share_does_not_touch_orders():
    """When the share shrinks an automatic quarantine goes, however old the order is."""
    bench = Bench(rules=EVERYONE, peers=["a", "b", "c"])
    bench.order(QuarantineOrder("1", "b", quarantined=True))
    bench.advance(1)
    bench.break_peer("c")
    bench.rules(replace(RULES, max_peers_percent=34))
    assert bench.cut_off() == {"b"}


def test_an_order_counts_from_when_its_peer_is_known():
    """A peer that an order cut off before anyone asked for it takes its share when it turns up."""
    bench = Bench(rules=replace(RULES, max_peers_percent=34), peers=["a", "b", "c"])
    bench.order(QuarantineOrder("1", "z", quarantined=True))
    bench.break_peer("a")
    assert bench.cut_off() == {"a", "z"}
    bench.admit("z")
    assert bench.cut_off() == {"z"}


def test_last_order_about_a_peer_wins():
    """Of two orders about one peer the later in the push holds."""
    bench = Bench()
    bench.order(QuarantineOrder("1", "a", quarantined=True), QuarantineOrder("2", "a", quarantined=False))
    assert bench.admit("a").remote
    bench.order(QuarantineOrder("2", "a", quarantined=False), QuarantineOrder("1", "a", quarantined=True))
    assert not bench.admit("a").remote


def test_too_many_orders_are_refused():
    """The number of orders is bounded; those in force stay."""
    bench = Bench(max_peers=2)
    bench.order(QuarantineOrder("1", "a", quarantined=True))
    with pytest.raises(ValueError, match="3 quarantine orders at once; use at most 2"):
        bench.order(*(QuarantineOrder(str(number), "b", quarantined=True) for number in range(3)))
    assert bench.cut_off() == {"a"}
    bench.order(QuarantineOrder("1", "a", quarantined=True), QuarantineOrder("2", "b", quarantined=True))
    assert bench.cut_off() == {"a", "b"}
