"""Deadlines of waiting requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.rules.deadlines import (
    DeadlineLimits,
    Deadlines,
    Overdue,
    WaitKind,
    exceeded_deadline,
)
from penstock.rules.policy import Deferral

NONE = DeadlineLimits()
LIMITS = DeadlineLimits(max_start_wait_ns=30, max_transfer_wait_ns=5)


@pytest.mark.parametrize(
    ("deferral", "limits"),
    [
        (None, NONE),
        (Deferral(), NONE),
        (Deferral(max_start_wait=30.0), DeadlineLimits(30_000_000_000, None)),
        (Deferral(max_transfer_wait=0.0015), DeadlineLimits(None, 1_500_000)),
    ],
)
def test_limits_of_a_policy(deferral, limits):
    """Seconds become nanoseconds; what a policy leaves open has no limit."""
    assert DeadlineLimits.from_policy(deferral) == limits


@pytest.mark.parametrize(
    ("limits", "transfer", "end", "over"),
    [
        (NONE, 0, 10_000, None),
        (LIMITS, 0, 130, None),
        (LIMITS, 0, 131, (WaitKind.START, 31, 30)),
        (LIMITS, 130, 135, None),
        (LIMITS, 110, 116, (WaitKind.TRANSFER, 6, 5)),
        (LIMITS, 131, 140, (WaitKind.START, 31, 30)),
        (DeadlineLimits(max_transfer_wait_ns=5), 0, 10_000, None),
    ],
)
def test_which_deadline_a_wait_was_over(limits, transfer, end, over):
    """Of a wait from 100 on: the first deadline that it was over, counted as when it would have been enforced."""
    assert exceeded_deadline(limits, 100, transfer, end) == over


def test_start_wait():
    """A request is overdue after more than the limit, and is returned once."""
    deadlines = Deadlines()
    deadlines.begin("r", 100)
    assert deadlines.next_due(LIMITS) == 130
    assert deadlines.pop_overdue(LIMITS, 130) == []
    assert deadlines.pop_overdue(LIMITS, 131) == [Overdue("r", WaitKind.START, 31, 30)]
    assert deadlines.pop_overdue(LIMITS, 1000) == []
    assert len(deadlines) == 0


def test_transfer_wait_counts_from_the_start():
    """A long wait for the start does not count against the transfer."""
    deadlines = Deadlines()
    deadlines.begin("r", 100)
    deadlines.started("r", 129)
    assert deadlines.next_due(LIMITS) == 134
    assert deadlines.pop_overdue(LIMITS, 134) == []
    assert deadlines.pop_overdue(LIMITS, 135) == [Overdue("r", WaitKind.TRANSFER, 6, 5)]


def test_repeated_polls_change_nothing():
    """The scheduler asks about a parked request in every step; the first time counts."""
    deadlines = Deadlines()
    deadlines.begin("r", 100)
    deadlines.begin("r", 120)
    assert deadlines.next_due(LIMITS) == 130
    deadlines.started("r", 121)
    deadlines.begin("r", 122)
    deadlines.started("r", 123)
    assert deadlines.next_due(LIMITS) == 126


def test_live_change_applies_to_those_that_wait():
    """A shorter limit ends a wait that began before it, a longer one lets it go on, and none waits for ever."""
    deadlines = Deadlines()
    deadlines.begin("r", 0)
    assert deadlines.pop_overdue(NONE, 10**18) == []
    assert deadlines.next_due(NONE) is None
    assert deadlines.pop_overdue(DeadlineLimits(max_start_wait_ns=60), 50) == []
    assert [each.request_id for each in deadlines.pop_overdue(DeadlineLimits(max_start_wait_ns=10), 50)] == [
        "r"
    ]


def test_end_and_late_start():
    """A request that ended is not returned, and a late start does not bring it back."""
    deadlines = Deadlines()
    deadlines.begin("r", 0)
    deadlines.end("r")
    deadlines.started("r", 1)
    deadlines.end("r")
    assert deadlines.next_due(LIMITS) is None
    assert len(deadlines) == 0


def test_a_start_reported_late_counts_from_the_later_one():
    """The order of the waits holds when starts come out of order."""
    deadlines = Deadlines()
    deadlines.begin("a", 0)
    deadlines.begin("b", 0)
    deadlines.started("a", 20)
    deadlines.started("b", 10)
    assert [each.request_id for each in deadlines.pop_overdue(LIMITS, 26)] == ["a", "b"]


limits = st.builds(DeadlineLimits, st.none() | st.integers(0, 40), st.none() | st.integers(0, 40))
steps = st.tuples(
    st.integers(0, 20),
    st.sampled_from(["begin", "started", "end", "check"]),
    st.sampled_from("abcd"),
    limits,
)


@given(st.lists(steps, max_size=60))
def test_like_a_plain_scan(script):
    """It returns exactly those that a scan over all requests finds, and nothing is due before ``next_due``."""
    deadlines, now = Deadlines(), 0
    model: dict[str, tuple[WaitKind, int]] = {}
    for pause, what, request_id, limit in script:
        now += pause
        if what == "begin":
            deadlines.begin(request_id, now)
            model.setdefault(request_id, (WaitKind.START, now))
        elif what == "started":
            deadlines.started(request_id, now)
            if request_id in model and model[request_id][0] is WaitKind.START:
                model[request_id] = (WaitKind.TRANSFER, now)
        elif what == "end":
            deadlines.end(request_id)
            model.pop(request_id, None)
        else:
            due = deadlines.next_due(limit)
            expected = {
                each: Overdue(each, wait, now - since, limit.of(wait))
                for each, (wait, since) in model.items()
                if limit.of(wait) is not None and now - since > limit.of(wait)
            }
            assert (due is not None and now > due) == bool(expected)
            overdue = deadlines.pop_overdue(limit, now)
            assert sorted(overdue, key=lambda each: each.request_id) == [
                expected[each] for each in sorted(expected)
            ]
            for each in expected:
                del model[each]
        assert len(deadlines) == len(model)
