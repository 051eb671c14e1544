"""Quarantine orders and fault drills of a push: the engine's own bounds, and how they run down."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from penstock.instrumentation import constants as c
from penstock.instrumentation.directives import NO_DIRECTIVES, Directives
from penstock.instrumentation.directives_decode import decode_directives
from penstock.instrumentation.drills import Drill
from penstock.instrumentation.policy_decode import RefusedError
from penstock.instrumentation.policy_holder import PolicyHolder
from penstock.instrumentation.policy_model import NO_POLICY, Policy
from penstock.instrumentation.quarantine import Order
from penstock.proto.v1.policy_pb2 import Push

SECOND = 1_000_000_000
ORDER = {"id": "o", "peer": "10.0.0.7:5600", "state": "QUARANTINE_STATE_OPEN"}
DRILL = {"id": "d", "channel": "CHANNEL_KV", "mode": "FAILURE_MODE_SETUP", "rate": 0.5, "validFor": "60s"}


def push(**fields: Any) -> Push:
    """Build a push from JSON."""
    return json_format.ParseDict(fields, Push())


def decoded(message: Push, *, faults_allowed: bool = True) -> Directives:
    """Decode at the second 100."""
    return decode_directives(message, faults_allowed=faults_allowed, now_ns=100 * SECOND)


def test_everything_a_directive_can_say() -> None:
    """Orders and drills arrive with their times in nanoseconds."""
    found = decoded(
        push(
            quarantines=[
                {**ORDER, "validFor": "1.5s"},
                {"id": "l", "peer": "p", "state": "QUARANTINE_STATE_CLOSED"},
            ],
            drills=[{**DRILL, "peer": "p", "delay": "2s"}],
        )
    )
    assert found.orders == (
        Order("o", "10.0.0.7:5600", quarantined=True, ttl_ns=3 * SECOND // 2),
        Order("l", "p", quarantined=False, ttl_ns=None),
    )
    drill = Drill("d", c.CHANNEL_KV, c.FAILURE_MODE_SETUP, 0.5, 60 * SECOND, "p", 2 * SECOND)
    assert found.drills == (drill,)
    assert found.received_ns == 100 * SECOND


def test_nothing_ordered() -> None:
    """A push without directives is always the same nothing."""
    assert decoded(push()) is NO_DIRECTIVES


def test_drills_run_down() -> None:
    """What is passed on later has only the time that is left, and nothing when it is over."""
    found = decoded(push(drills=[DRILL]))
    (later,) = found.drills_at(140 * SECOND)
    assert later.valid_for_ns == 20 * SECOND
    assert found.drills_at(160 * SECOND) == ()


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        (push(quarantines=[{**ORDER, "peer": ""}]), "quarantines", "0 of peer"),
        (push(quarantines=[{**ORDER, "peer": "x" * 257}]), "quarantines", "257 of peer"),
        (push(quarantines=[{**ORDER, "id": ""}]), "quarantines", "0 characters of id"),
        (
            push(quarantines=[{**ORDER, "state": "QUARANTINE_STATE_HALF_OPEN"}]),
            "quarantines",
            "open or closed",
        ),
        (push(quarantines=[ORDER] * 1025), "quarantines", "1025"),
        (push(drills=[{**DRILL, "rate": 2}]), "drills", "rate 2"),
        (push(drills=[{"id": "d"}]), "drills", "drill d"),
    ],
)
def test_out_of_bounds(message: Push, field: str, words: str) -> None:
    """What breaks a bound is refused in a sentence that names the field."""
    with pytest.raises(RefusedError, match=words) as refused:
        decoded(message)
    assert refused.value.field == field


def test_drills_have_to_be_allowed() -> None:
    """An engine that was not started for faults refuses drills and says how to start it, but takes orders."""
    with pytest.raises(RefusedError, match="PENSTOCK_ALLOW_FAULTS=1"):
        decoded(push(drills=[DRILL]), faults_allowed=False)
    assert decoded(push(quarantines=[ORDER]), faults_allowed=False).orders


def test_followers_hear_every_swap() -> None:
    """Who follows the policy hears the present one, and each swap before it can be acted upon."""
    holder, heard = PolicyHolder(), []

    def follower(policy: Policy, directives: Directives) -> None:
        heard.append((policy, directives))

    holder.follow(follower)
    ordered = Directives(orders=(Order("o", "p", quarantined=True),))
    assert holder.swap(NO_POLICY, 1.0, ordered)
    assert holder.swap(Policy(hash="h"), 1.0)
    holder.unfollow(follower)
    assert holder.swap(NO_POLICY, 1.0)
    assert heard == [(NO_POLICY, NO_DIRECTIVES), (NO_POLICY, ordered), (Policy(hash="h"), ordered)]
