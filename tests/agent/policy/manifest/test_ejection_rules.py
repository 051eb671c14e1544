"""What policies say about taking a server out: their merge by rank, and that engines are sent nothing of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from penstock.agent.errors import ManifestError
from penstock.agent.model import EngineKey
from penstock.agent.parsing import Target
from penstock.agent.policy.manifest import (
    EjectionRules,
    Manifest,
    check_manifest,
    ejection_rules,
    merge_policies,
    strictest,
)

_NOW = datetime(2026, 11, 30, tzinfo=UTC)
_PREFILL = Target(EngineKey("p", "0"), "m", {"role": "prefill"})


def _policy(name: str, ejection: dict[str, Any] | None, **spec: Any) -> Manifest:
    sections = {} if ejection is None else {"ejection": ejection}
    return check_manifest(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name},
            "spec": {**sections, **spec},
        }
    )


_DECODE = {"matchLabels": {"role": "decode"}}
_FAIL = {"kvLoadFailure": {"action": "fail"}}


@pytest.mark.parametrize(
    ("policies", "rules"),
    [
        ([], None),
        ([_policy("a", None, **_FAIL)], None),
        ([_policy("a", {"perHour": 3}, selector=_DECODE)], None),
        ([_policy("a", {"perHour": 3}, expiresAt="2026-11-29T00:00:00Z")], None),
        ([_policy("a", {"perHour": 3})], EjectionRules(policy="a", per_hour=3)),
        (
            [
                _policy(
                    "a",
                    {
                        "action": "enforce", "minReaders": 4, "minFailures": 5, "after": "1m", "duration": "10m",
                        "maxPodsPercent": 50, "perHour": 7,
                    },
                )
            ],
            EjectionRules(
                policy="a", enforces=True, min_readers=4, min_failures=5, after=60.0, duration=600.0,
                max_pods_percent=50, per_hour=7,
            ),
        ),
        ([_policy("a", {"action": "enforce"}, mode="observe")], EjectionRules(policy="a")),
        (
            [_policy("a", {"action": "enforce"}), _policy("b", {"action": "observe"}, priority=200)],
            EjectionRules(policy="b"),
        ),
        (
            [_policy("a", {"action": "enforce"}), _policy("b", {"action": "enforce"}, mode="observe", priority=200)],
            EjectionRules(policy="a", enforces=True),
        ),
        # What is tried loosens nothing that is enforced, of a higher rank and of a lower one.
        (
            [
                _policy("a", {"action": "enforce", "minReaders": 5}),
                _policy("b", {"minReaders": 2, "maxPodsPercent": 100}, mode="observe", priority=200),
                _policy("c", {"perHour": 60}, mode="observe", priority=1),
            ],
            EjectionRules(policy="a", enforces=True, min_readers=5),
        ),
        (
            [_policy("a", {"minReaders": 5}), _policy("b", {"perHour": 3}, mode="observe", priority=200)],
            EjectionRules(policy="b", min_readers=5, per_hour=3),
        ),
        (
            [_policy("a", {"action": "enforce", "after": "20s"}), _policy("b", {"after": "50s"}, priority=200)],
            EjectionRules(policy="b", enforces=True, after=50.0),
        ),
        (
            [_policy("b", {"perHour": 1}), _policy("a", {"perHour": 2})],
            EjectionRules(policy="a", per_hour=2),
        ),
    ],
)  # fmt: skip
def test_rules(policies: list[Manifest], rules: EjectionRules | None) -> None:
    """By rank, field by field; what observes, and what expired, enforces nothing."""
    assert ejection_rules(policies, _PREFILL, _NOW) == rules
    assert ejection_rules(policies[::-1], _PREFILL, _NOW) == rules


def test_the_strictest_of_several_engines() -> None:
    """Each field by itself; an engine without rules leaves none."""
    one = EjectionRules(
        policy="a", enforces=True, min_readers=5, after=10.0, duration=600.0, max_pods_percent=50
    )
    other = EjectionRules(policy="b", enforces=True, min_failures=9, after=60.0, per_hour=2)
    assert strictest([one, other]) == EjectionRules(
        policy="a", enforces=True, min_readers=5, min_failures=9, after=60.0, max_pods_percent=34, per_hour=2
    )
    assert strictest([one, EjectionRules(policy="c")]) == EjectionRules(policy="a", min_readers=5)
    assert strictest([one, None]) is None
    assert strictest([]) is None


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_engines_are_sent_nothing_of_it(mode: str) -> None:
    """The policy of an engine, and its hash, are the same with and without it."""
    own = _policy("a", None, **_FAIL)
    assert merge_policies([_policy("b", {"perHour": 3}, mode=mode)]).hash == ""
    assert merge_policies([own, _policy("b", {"perHour": 3}, mode=mode)]) == merge_policies([own])
    both = _policy("a", {"perHour": 3}, **_FAIL)
    assert merge_policies([both]).leaves() == merge_policies([own]).leaves()
    assert merge_policies([both]).hash == merge_policies([own]).hash


@pytest.mark.parametrize(
    ("ejection", "error"),
    [
        ({}, "spec sets no field; set at least one, such as kvLoadFailure.action"),
        ({"minReaders": 1}, "spec.ejection.minReaders is 1; use a whole number from 2 to 64"),
        ({"after": "5s"}, "spec.ejection.after is '5s'; use a duration from 10s to 1h such as 1m"),
        ({"action": "on"}, "spec.ejection.action is 'on'; use one of observe, enforce"),
        ({"perhour": 1}, "spec.ejection.perhour is not a field; did you mean perHour?"),
    ],
)
def test_what_is_refused(ejection: dict[str, Any], error: str) -> None:
    """With a sentence that says what to write."""
    with pytest.raises(ManifestError) as refused:
        _policy("a", ejection)
    assert str(refused.value) == error


def test_a_roll_out_draws_servers() -> None:
    """Its share applies; a candidate changes what engines do, and leaves this as it is."""
    expires = (_NOW + timedelta(days=1)).isoformat()
    for percent, found in ((0, None), (100, EjectionRules(policy="a", per_hour=3))):
        policy = _policy("a", {"perHour": 3}, rollout={"percent": percent}, expiresAt=expires)
        assert ejection_rules([policy], _PREFILL, _NOW) == found
    changed = _policy(
        "a",
        {"perHour": 3},
        **_FAIL,
        rollout={"percent": 100, "candidate": {"deferral": {"maxTransferWait": "5s"}}},
    )
    assert ejection_rules([changed], _PREFILL, _NOW) == EjectionRules(policy="a", per_hour=3)
