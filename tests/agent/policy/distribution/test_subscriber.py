"""The time from a change to its acknowledgement, by the agent's clock."""

from __future__ import annotations

from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Target
from penstock.agent.policy.distribution.subscriber import DesiredState, Subscriber
from penstock.proto.v1.policy_pb2 import PolicyAck, PolicyMoved, Subscribe

PATIENCE = 10.0


def _subscriber() -> Subscriber:
    return Subscriber(Target(EngineKey("", "0"), "tiny", {}), 1, frozenset(), "")


def _ack(subscriber: Subscriber, nonce: int, at: float) -> float:
    assert subscriber.on_ack(PolicyAck(nonce=nonce, hash=subscriber.wanted.hash), at)
    assert subscriber.answer is not None
    return subscriber.answer.took


def test_a_paused_engine_has_a_policy_and_none_in_force() -> None:
    """A pause holds the policy back from the subscription on, if there is a policy."""
    hello = Subscribe(hash_in_force="a", paused=True)
    subscriber = Subscriber.from_subscribe(hello, Target(EngineKey("", "0"), "tiny", {}))
    assert (subscriber.paused, subscriber.hash_taken, subscriber.hash_in_force) == (True, "a", "")
    for wanted, held_back in (
        (DesiredState(("a",), paused=True), True),
        (DesiredState(("",), paused=True, quarantines=("q",)), True),
        (DesiredState(("",), paused=True), False),
        (DesiredState(("a",)), False),
    ):
        subscriber.set_desired(wanted, 1.0)
        ack = PolicyAck(nonce=subscriber.record_push(1.0), hash=wanted.hash, paused=wanted.paused)
        assert subscriber.on_ack(ack, 2.0)
        assert (subscriber.held_back, subscriber.in_force) == (held_back, not held_back)
        assert subscriber.hash_taken == wanted.hash
        assert subscriber.hash_in_force == ("" if wanted.paused else wanted.hash)


def test_a_change_counts_from_when_it_was_wanted() -> None:
    """The time starts at the change, before its push."""
    subscriber = _subscriber()
    assert subscriber.set_desired(DesiredState(("a",)), 1.0)
    first = subscriber.record_push(2.0)
    assert subscriber.set_desired(DesiredState(("b",)), 3.0)
    assert not subscriber.due(4.0, PATIENCE)
    assert _ack(subscriber, first, 5.0) == 4.0
    assert subscriber.due(5.0, PATIENCE)
    assert _ack(subscriber, subscriber.record_push(6.0), 7.0) == 4.0


def test_a_push_that_is_sent_again_counts_from_the_change() -> None:
    """A repeated push counts from the change, like the first one."""
    subscriber = _subscriber()
    subscriber.set_desired(DesiredState(("a",)), 1.0)
    subscriber.record_push(1.0)
    assert not subscriber.set_desired(DesiredState(("a",)), 5.0)
    assert subscriber.due(1.0 + PATIENCE, PATIENCE)
    assert _ack(subscriber, subscriber.record_push(11.0), 12.0) == 11.0


def test_what_is_said_again_counts_from_its_push() -> None:
    """A push that repeats an acknowledged state counts from itself."""
    subscriber = _subscriber()
    subscriber.set_desired(DesiredState(("a", "b"), (1000.0,)), 1.0)
    assert _ack(subscriber, subscriber.record_push(1.0), 2.0) == 1.0
    subscriber.on_moved(PolicyMoved(hash="b"), 490.0)
    assert subscriber.due(490.0 + PATIENCE, PATIENCE)
    assert _ack(subscriber, subscriber.record_push(500.0), 502.0) == 2.0
