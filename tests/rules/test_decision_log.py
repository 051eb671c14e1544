"""The first decision on an attempt sticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.rules.decisions import DecidedBy, Decision, DecisionLog, Outcome

RECOMPUTED = Decision(Outcome.RECOMPUTED, DecidedBy.POLICY, "first")
FAILED = Decision(Outcome.FAILED, DecidedBy.BUDGET, "later")


def never():
    """Stand in for a decision that must not be asked for."""
    raise AssertionError("decided twice")


def test_first_decision_sticks():
    """A second report of the same attempt gets the first decision, marked as not the first."""
    log = DecisionLog()
    assert log.get_or_decide("r", 1, lambda: RECOMPUTED) == (RECOMPUTED, True)
    assert log.get_or_decide("r", 1, never) == (RECOMPUTED, False)


def test_each_attempt_is_decided():
    """Another attempt of the request, and the same attempt of another, are decided on their own."""
    log = DecisionLog()
    log.get_or_decide("r", 1, lambda: RECOMPUTED)
    assert log.get_or_decide("r", 2, lambda: FAILED) == (FAILED, True)
    assert log.get_or_decide("s", 1, lambda: FAILED) == (FAILED, True)


def test_an_error_decides_nothing():
    """A decision that raised can be taken again."""
    log = DecisionLog()
    with pytest.raises(AssertionError, match="decided twice"):
        log.get_or_decide("r", 1, never)
    assert log.get_or_decide("r", 1, lambda: FAILED) == (FAILED, True)


def test_bounded_and_counted():
    """Above the capacity the one asked for longest ago goes, and is counted."""
    log = DecisionLog(capacity=2)
    log.get_or_decide("a", 1, lambda: RECOMPUTED)
    log.get_or_decide("b", 1, lambda: RECOMPUTED)
    log.get_or_decide("a", 1, never)
    log.get_or_decide("c", 1, lambda: RECOMPUTED)
    assert log.forgotten == 1
    assert not log.get_or_decide("a", 1, never).first
    assert log.get_or_decide("b", 1, lambda: FAILED).first


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from([RECOMPUTED, FAILED]))))
def test_one_first_per_attempt(reports):
    """Within the capacity each attempt is reported once, with one decision for all its reports."""
    log = DecisionLog(capacity=9)
    decisions: dict[tuple[str, int], Decision] = {}
    firsts: list[tuple[str, int]] = []
    for request_id, attempt, decision in reports:
        settled = log.get_or_decide(request_id, attempt, iter([decision]).__next__)
        assert decisions.setdefault((request_id, attempt), settled.decision) == settled.decision
        firsts += [(request_id, attempt)] * settled.first
    assert sorted(firsts) == sorted(decisions)
    assert log.forgotten == 0
