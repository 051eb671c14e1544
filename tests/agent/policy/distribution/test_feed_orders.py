"""Orders in the policy feed, over real gRPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.agent.policy.distribution.subscriber import Subscriber
from penstock.proto.v1.common_pb2 import CHANNEL_KV, FAILURE_MODE_HANDSHAKE
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN
from penstock.proto.v1.policy_pb2 import PolicyNack, Report, Subscribe

from tests.support.policy.feed import Engine, FeedServer, eventually, hash_of
from tests.support.policy.orders import SECOND, fault_drill, quarantine_order, select
from tests.support.policy.policies import action, manifest

if TYPE_CHECKING:
    from penstock.agent.policy.orders.timed_orders import FaultDrill
    from penstock.proto.v1.policy_pb2 import Push

_ABLE: dict[str, Any] = {"supported_fields": ["kv_load_failure", "peer_quarantine"], "faults_allowed": True}


async def _answered(engine: Engine) -> Push:
    push = await engine.push()
    await engine.ack(push)
    return push


def _now_drill(drill_id: str, *, seconds: int = 60, labels: str = "") -> FaultDrill:
    return fault_drill(drill_id, began=time.time_ns(), seconds=seconds, selection=select(labels))


async def test_an_order_reaches_the_selected_engine_with_the_time_that_is_left(served: FeedServer) -> None:
    """Each push to a selected engine has all its orders with the remaining time; other engines get none."""
    one, two = Engine(served.address, "0", tier="a"), Engine(served.address, "1", tier="b")
    for engine in (one, two):
        await engine.connect(**_ABLE)
        await _answered(engine)
    await served.store.apply(manifest(kvLoadFailure=action("fail")), author="me")
    policy = await _answered(one)
    await _answered(two)
    began, labels = time.time_ns(), select("tier=a")
    await served.orders.set_quarantine(quarantine_order("q1", began=began, selection=labels))
    push = await _answered(one)
    assert hash_of(push) == hash_of(policy)
    (order,) = push.quarantines
    assert (order.id, order.peer, order.state) == ("q1", "p:5600", QUARANTINE_STATE_OPEN)
    assert 0 < order.valid_for.ToNanoseconds() <= 60 * SECOND
    await served.orders.start_drill(_now_drill("d1", labels="tier=a"))
    push = await _answered(one)
    (drill,) = push.drills
    assert (drill.id, drill.channel, drill.mode, drill.rate) == (
        "d1",
        CHANNEL_KV,
        FAILURE_MODE_HANDSHAKE,
        0.2,
    )
    assert 0 < drill.valid_for.ToNanoseconds() <= 60 * SECOND
    assert [order.id for order in push.quarantines] == ["q1"]
    await served.pauses.set(None, paused=True, author="me", which="all")
    push = await _answered(two)
    assert (push.nonce, push.paused, list(push.drills), list(push.quarantines)) == (3, True, [], [])
    await one.disconnect()
    await two.disconnect()


async def test_an_engine_that_would_refuse_an_order_does_not_get_it(served: FeedServer) -> None:
    """An order is not sent to an engine that does not support it."""
    async with Engine(served.address) as engine:
        await _answered(engine)
        await served.orders.set_quarantine(quarantine_order(began=time.time_ns()))
        await served.orders.start_drill(_now_drill("d1"))
        await served.store.apply(manifest(kvLoadFailure=action("fail")), author="me")
        push = await _answered(engine)
        assert (push.nonce, len(push.schedule)) == (2, 1)
        assert (list(push.drills), list(push.quarantines)) == ([], [])


async def test_an_order_stands_apart_from_the_policy(served: FeedServer) -> None:
    """Orders are accepted or refused by id, independent of the policy's answer; unknown ids are ignored."""
    engine = Engine(served.address)
    await engine.connect(**_ABLE)
    await _answered(engine)
    await served.orders.set_quarantine(quarantine_order("q1", began=time.time_ns()))
    push = await engine.push()
    subscriber = served.feed.subscriber(engine.key)
    assert subscriber is not None
    assert subscriber.order_error("q1") is None
    await engine.ack(push)
    await served.orders.start_drill(_now_drill("d1"))
    push = await engine.push()
    refusals = [{"id": "d1", "error": "no" * 4_000}, {"id": "strange", "error": "no"}]
    await engine.report(Report(nack=PolicyNack(nonce=push.nonce, error="not this", refused_orders=refusals)))
    await eventually(lambda: subscriber.settled, "the engine has answered")
    assert not subscriber.in_force
    assert subscriber.order_error("q1") == ""
    assert (subscriber.order_error("d1") or "")[:4] == "nono"
    assert subscriber.order_error("strange") is None
    assert subscriber.answer is not None
    assert [len(error) for error in subscriber.answer.refused_orders.values()] == [1024]
    await engine.disconnect()


async def test_a_drill_ends_by_itself(served: FeedServer) -> None:
    """An expired drill leaves the next push; other orders stay."""
    engine = Engine(served.address)
    await engine.connect(**_ABLE)
    await _answered(engine)
    await served.orders.start_drill(_now_drill("long"))
    assert [drill.id for drill in (await _answered(engine)).drills] == ["long"]
    await served.orders.start_drill(fault_drill("short", began=time.time_ns(), seconds=8))
    assert [drill.id for drill in (await _answered(engine)).drills] == ["long", "short"]
    assert [drill.id for drill in (await _answered(engine)).drills] == ["long"]
    await engine.disconnect()


async def test_an_engine_that_comes_back_gets_what_is_still_in_force(served: FeedServer) -> None:
    """A reconnecting engine gets the orders in force, lifts included."""
    engine = Engine(served.address)
    await engine.connect(**_ABLE)
    await _answered(engine)
    await engine.disconnect()
    await eventually(
        lambda: (known := served.feed.subscriber(engine.key)) is not None and not known.connected,
        "the engine has left",
    )
    await served.orders.set_quarantine(quarantine_order(began=time.time_ns(), quarantined=False))
    await engine.connect(**_ABLE)
    (order,) = (await _answered(engine)).quarantines
    assert order.state == QUARANTINE_STATE_CLOSED
    await engine.disconnect()


async def test_the_end_of_a_drill_does_not_wait_for_an_answer(served: FeedServer) -> None:
    """The end of a drill is pushed while the push with the drill is unanswered."""
    engine = Engine(served.address)
    await engine.connect(**_ABLE)
    await _answered(engine)
    await served.orders.start_drill(_now_drill("d1"))
    assert [drill.id for drill in (await engine.push()).drills] == ["d1"]
    await served.orders.stop_drill("d1", author="me")
    assert list((await engine.push()).drills) == []
    await engine.disconnect()


def test_what_an_engine_says_it_can_do() -> None:
    """Capabilities that a subscription does not state are absent."""
    target = Engine("unix:///nowhere").key
    silent = Subscriber.from_subscribe(Subscribe(), target)  # type: ignore[arg-type]
    assert (silent.takes_quarantines, silent.faults_allowed) == (False, False)
    able = Subscriber.from_subscribe(Subscribe(**_ABLE), target)  # type: ignore[arg-type]
    assert (able.takes_quarantines, able.faults_allowed) == (True, True)
