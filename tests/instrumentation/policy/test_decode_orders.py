"""Quarantine orders and fault drills of a push: the engine's own bounds, and how they run down."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import NO_ORDERS, Drill, Orders
from penstock.instrumentation.policy.active_policy import ActivePolicy
from penstock.instrumentation.policy.decode_push import decode_orders
from penstock.proto.v1.policy_pb2 import Push
from penstock.rules.policy import NO_POLICY, Policy
from penstock.rules.quarantine import QuarantineOrder

SECOND = 1_000_000_000
ORDER = {"id": "o", "peer": "10.0.0.7:5600", "state": "QUARANTINE_STATE_OPEN"}
DRILL = {"id": "d", "channel": "CHANNEL_KV", "mode": "FAILURE_MODE_SETUP", "rate": 0.5, "validFor": "60s"}


def push(**fields: Any) -> Push:
    """Build a push from JSON."""
    return json_format.ParseDict(fields, Push())


def decoded(message: Push, *, faults_allowed: bool = True) -> tuple[Orders, dict[str, str]]:
    """Decode at the second 100."""
    return decode_orders(message, faults_allowed=faults_allowed, now_ns=100 * SECOND)


def accepted(message: Push) -> Orders:
    """Decode a push of which no order is refused."""
    orders, refused = decoded(message)
    assert refused == {}
    return orders


def test_every_field_of_an_order() -> None:
    """Orders and drills arrive with their times in nanoseconds."""
    found = accepted(
        push(
            quarantines=[
                {**ORDER, "validFor": "1.5s"},
                {"id": "l", "peer": "p", "state": "QUARANTINE_STATE_CLOSED"},
            ],
            drills=[{**DRILL, "peer": "p", "delay": "2s"}],
        )
    )
    assert found.quarantines == (
        QuarantineOrder("o", "10.0.0.7:5600", quarantined=True, ttl_ns=3 * SECOND // 2),
        QuarantineOrder("l", "p", quarantined=False, ttl_ns=None),
    )
    drill = Drill("d", c.CHANNEL_KV, c.FAILURE_MODE_SETUP, 0.5, 60 * SECOND, "p", 2 * SECOND)
    assert found.drills == (drill,)
    assert found.received_ns == 100 * SECOND


def test_nothing_ordered() -> None:
    """A push without orders is always the same nothing."""
    assert accepted(push()) is NO_ORDERS


def test_drills_run_down() -> None:
    """What is passed on later has only the time that is left, and nothing when it is over."""
    found = accepted(push(drills=[DRILL]))
    (later,) = found.drills_at(140 * SECOND)
    assert later.valid_for_ns == 20 * SECOND
    assert found.drills_at(160 * SECOND) == ()


UNKNOWN = b"\xe8\x04\x01"
"""Field 77, of a newer agent."""


@pytest.mark.parametrize(
    ("message", "name", "words"),
    [
        (push(quarantines=[{**ORDER, "peer": ""}]), "o", "names no peer"),
        (push(quarantines=[{**ORDER, "peer": "x" * 257}]), "o", "257 of peer"),
        (push(quarantines=[{**ORDER, "id": ""}]), "", "0 characters of id"),
        (push(drills=[{**DRILL, "id": "x" * 300}]), "x" * 256, "300 characters of id"),
        (push(quarantines=[{**ORDER, "state": "QUARANTINE_STATE_HALF_OPEN"}]), "o", "open or closed"),
        (push(drills=[{**DRILL, "rate": 2}]), "d", "rate 2"),
        (push(drills=[{"id": "d"}]), "d", "drill d"),
    ],
)
def test_each_order_is_judged_alone(message: Push, name: str, words: str) -> None:
    """What breaks a bound is left out with a sentence; the good ones beside it hold."""
    message.MergeFrom(push(quarantines=[{**ORDER, "id": "good"}], drills=[{**DRILL, "id": "fine"}]))
    found, refused = decoded(message)
    assert [order.id for order in found.quarantines] == ["good"]
    assert [drill.id for drill in found.drills] == ["fine"]
    assert refused.keys() == {name}
    assert words in refused[name]


@pytest.mark.parametrize("kind", ["quarantines", "drills"])
def test_unknown_field_refuses_its_order(kind: str) -> None:
    """An order with a field of a newer agent would not do what is meant, so it is not carried out."""
    message = push(quarantines=[ORDER, {**ORDER, "id": "2"}], drills=[DRILL, {**DRILL, "id": "2"}])
    getattr(message, kind)[1].MergeFromString(UNKNOWN)
    found, refused = decoded(Push.FromString(message.SerializeToString()))
    assert (len(found.quarantines), len(found.drills)) == ((1, 2) if kind == "quarantines" else (2, 1))
    assert list(refused) == ["2"]
    assert "field 77" in refused["2"]


@pytest.mark.parametrize(
    ("kind", "one", "most"), [("quarantines", ORDER, 1024), ("drills", DRILL, 16)], ids=["orders", "drills"]
)
def test_as_many_as_fit_are_taken(kind: str, one: dict[str, Any], most: int) -> None:
    """Beyond the bound each is refused; the report of them is bounded, too."""
    found, refused = decoded(push(**{kind: [{**one, "id": str(number)} for number in range(most + 600)]}))
    assert len(found.quarantines) + len(found.drills) == most
    assert len(refused) == 512
    assert f"{most} " in refused[str(most)]


def test_drills_have_to_be_allowed() -> None:
    """An engine that was not started for faults refuses drills and says how to start it, but takes orders."""
    found, refused = decoded(push(drills=[DRILL], quarantines=[ORDER]), faults_allowed=False)
    assert (len(found.quarantines), found.drills) == (1, ())
    assert "PENSTOCK_ALLOW_FAULTS=1" in refused["d"]


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise(content: bytes) -> None:
    """Whatever parses as a push is taken or refused, order by order."""
    try:
        message = Push.FromString(content)
    except Exception:  # noqa: BLE001  (what is no push never gets here)
        return
    found, refused = decoded(message)
    assert len(found.quarantines) + len(found.drills) + len(refused) <= len(message.quarantines) + len(
        message.drills
    )


def test_subscribers_receive_every_swap() -> None:
    """A subscriber receives the present policy and each swap."""
    active, received = ActivePolicy(), []

    def subscriber(policy: Policy, orders: Orders) -> None:
        received.append((policy, orders))

    active.subscribe(subscriber)
    ordered = Orders(quarantines=(QuarantineOrder("o", "p", quarantined=True),))
    assert active.swap(NO_POLICY, 1.0, ordered)
    assert active.swap(Policy(hash="h"), 1.0)
    active.unsubscribe(subscriber)
    assert active.swap(NO_POLICY, 1.0)
    assert received == [(NO_POLICY, NO_ORDERS), (NO_POLICY, ordered), (Policy(hash="h"), ordered)]


def test_a_drill_that_the_engine_cannot_rehearse() -> None:
    """It is refused with the engine's own reason, and the others hold."""
    message = push(
        drills=[DRILL, {**DRILL, "id": "e", "channel": "CHANNEL_EC", "mode": "FAILURE_MODE_PROBE"}]
    )
    orders, refused = decode_orders(
        message,
        faults_allowed=True,
        now_ns=0,
        unfit=lambda drill: "it has no transfer" if drill.channel == c.CHANNEL_EC else "",
    )
    assert [drill.id for drill in orders.drills] == ["d"]
    assert refused == {"e": "it has no transfer"}
