"""Pushes of which a part is refused, against an agent's double on a real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.proto.v1.common_pb2 import CHANNEL_KV, FAILURE_MODE_SETUP
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.policy_pb2 import (
    FAILURE_ACTION_FAIL,
    Push,
)

from tests.support.policy.pushes import FAIL, applied, count, entry, last

if TYPE_CHECKING:
    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent

BAD_DRILL = {"id": "d", "channel": CHANNEL_KV, "mode": FAILURE_MODE_SETUP, "rate": 2.0}


ORDER = {"id": "q", "peer": "10.0.0.7:5600", "state": QUARANTINE_STATE_OPEN}


def test_refused_order_keeps_no_policy_out(agent: FakeAgent, subscribed: Runtime) -> None:
    """The policy and the good orders of a push hold; the bad one is named in the ACK and is an event."""
    agent.push(Push(schedule=FAIL.schedule, drills=[BAD_DRILL], quarantines=[ORDER]))
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    ack = last(agent, "ack").ack
    assert ack.hash == subscribed.policy.current.hash == "h-fail"
    assert [(each.id, "rate 2" in each.error) for each in ack.refused_orders] == [("d", True)]
    orders = subscribed.policy.orders
    assert ([order.id for order in orders.quarantines], orders.drills) == (["q"], ())
    agent.wait(lambda: ("order", "", False, "h-fail") in applied(agent), "the event")


def test_refused_policy_keeps_no_order_out(agent: FakeAgent, subscribed: Runtime) -> None:
    """The quarantine order of a push holds although its policy is refused; the last good policy stays."""
    agent.push(FAIL)
    bad = Push(schedule=[entry("h-bad", 9)], quarantines=[ORDER])
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert (nack.field, nack.hash_in_force, list(nack.refused_orders)) == (
        "kvLoadFailure.action",
        "h-fail",
        [],
    )
    assert [order.id for order in subscribed.policy.orders.quarantines] == ["q"]
    agent.push(Push(schedule=[entry("h-bad", 9)]))
    agent.wait(lambda: count(agent, "nack") == 2, "another refusal")
    assert subscribed.policy.orders.quarantines == ()


def test_field_of_a_newer_agent_is_named(agent: FakeAgent, subscribed: Runtime) -> None:
    """What the wire has and this engine does not know is refused by its number: in a policy all of it, of orders that one."""
    unknown = b"\xe8\x04\x01"  # field 77, varint 1
    push = Push(schedule=[entry("h-new", FAILURE_ACTION_FAIL)], quarantines=[ORDER, {**ORDER, "id": "new"}])
    push.schedule[0].body.kv_load_failure.MergeFromString(unknown)
    push.quarantines[1].MergeFromString(unknown)
    agent.push(push)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert (nack.field, nack.hash_in_force) == ("kvLoadFailure.77", "")
    assert "upgrade the engine" in nack.error
    assert [(each.id, "field 77" in each.error) for each in nack.refused_orders] == [("new", True)]
    assert [order.id for order in subscribed.policy.orders.quarantines] == ["q"]


def test_refused_push_leaves_the_last_good_one(agent: FakeAgent, subscribed: Runtime) -> None:
    """A push that asks for what the engine does not do is refused by field; the policy stays, and an event tells."""
    agent.push(FAIL)
    agent.wait(lambda: count(agent, "ack"), "the acknowledgement")
    bad = Push(schedule=[entry("h-bad", FAILURE_ACTION_FAIL)])
    bad.schedule[0].body.kv_load_failure.max_recompute_tokens = 5
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack"), "the refusal")
    nack = last(agent, "nack").nack
    assert (nack.nonce, nack.field, nack.hash_in_force) == (2, "kvLoadFailure.maxRecomputeTokens", "h-fail")
    assert "maxRecomputeTokens" in nack.error
    assert subscribed.policy.current.hash == "h-fail"
    agent.wait(lambda: ("push", "h-bad", False, "h-fail") in applied(agent), "the event")
    agent.push(bad)
    agent.wait(lambda: count(agent, "nack") == 2, "another refusal")
    agent.push(Push())
    agent.wait(lambda: ("push", "", True, "h-fail") in applied(agent), "the event of the end")
    assert len(applied(agent)) == 3, "the same refusal is one event"
