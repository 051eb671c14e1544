"""Which requests are verified."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.rules import Integrity, IntegrityAction, Policy, PolicyBody, integrity_rule
from penstock.rules.policy import IntegrityRule

ENFORCE, OBSERVE = IntegrityAction.ENFORCE, IntegrityAction.OBSERVE


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Policy(), None),
        (Policy(integrity=Integrity(action=ENFORCE)), None),
        (Policy(integrity=Integrity(0.0, ENFORCE)), None),
        (Policy(integrity=Integrity(0.5)), IntegrityRule(0.5, enforce=False)),
        (Policy(integrity=Integrity(0.5, OBSERVE)), IntegrityRule(0.5, enforce=False)),
        (Policy(integrity=Integrity(1.0, ENFORCE)), IntegrityRule(1.0, enforce=True)),
        (
            Policy(observed=PolicyBody(integrity=Integrity(1.0, ENFORCE))),
            IntegrityRule(1.0, enforce=False),
        ),
        (
            Policy(integrity=Integrity(0.1, ENFORCE), observed=PolicyBody(integrity=Integrity(1.0, OBSERVE))),
            IntegrityRule(0.1, enforce=True),
        ),
    ],
)
def test_rule_of_a_policy(policy: Policy, rule: IntegrityRule | None) -> None:
    """Without a ratio nothing is verified; mode observe never enforces."""
    assert integrity_rule(policy) == rule


@given(request_id=st.text(), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_sample_is_a_function_of_the_id(request_id: str, low: float, high: float) -> None:
    """A larger ratio only adds requests; 0 has none and 1 has all."""
    low, high = sorted((low, high))
    assert not IntegrityRule(0.0, enforce=True).samples(request_id)
    assert IntegrityRule(1.0, enforce=True).samples(request_id)
    if IntegrityRule(low, enforce=True).samples(request_id):
        assert IntegrityRule(high, enforce=False).samples(request_id)


def test_a_sample_has_about_its_share() -> None:
    """Of 10,000 ids a tenth."""
    rule = IntegrityRule(0.1, enforce=True)
    assert 900 < sum(rule.samples(f"cmpl-{number}") for number in range(10_000)) < 1_100
