"""The policy feed over real gRPC, with an engine whose answers the test scripts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.model import EngineKey
from penstock.proto.v1.policy_pb2 import FAILURE_ACTION_FAIL, OrderRefusal, PolicyAck, Report, Subscribe
from structlog.testing import capture_logs

from tests.support.policy.feed import (
    Engine,
    FeedServer,
    answered,
    eventually,
    hash_of,
    running_feed,
    subscriber_of,
)
from tests.support.policy.policies import action, manifest

if TYPE_CHECKING:
    from pathlib import Path


_FAIL = action("fail")


async def test_the_first_push_comes_at_once(served: FeedServer) -> None:
    """An engine that no policy selects gets an empty policy: vLLM's own configuration holds."""
    async with Engine(served.address) as engine:
        push = await engine.push()
        assert (push.nonce, list(push.schedule), push.paused) == (1, [], False)
        await engine.ack(push)
        assert (await answered(served, engine)).in_force


async def test_names_of_policies_go_to_engines_that_take_them(served: FeedServer) -> None:
    """A push names policies, without author, to engines that support names; others get none."""
    older, newer = Engine(served.address, "0"), Engine(served.address, "1")
    await older.connect()
    await newer.connect(takes_policy_names=True)
    for engine in (older, newer):
        await engine.ack(await engine.push())
    await served.store.apply(manifest("calm", kvLoadFailure=_FAIL), author="ann@host")
    plain, named = await older.push(), await newer.push()
    assert not plain.schedule[0].policies
    (source,) = named.schedule[0].policies
    assert (source.name, source.generation, source.author) == ("calm", 1, "")
    assert list(source.fields) == ["kvLoadFailure.action"]
    with capture_logs() as lines:
        await older.ack(plain)
        await newer.ack(named)
        await eventually(
            lambda: (
                {engine for line in lines if line.get("hash") for engine in line["engines"]} == {"0", "1"}
            ),
            "the acknowledgements are logged",
        )
    named_as = {line["policy"] for line in lines if line.get("hash")}
    assert named_as == {"calm (generation 1, by ann@host)"}
    await served.store.apply(manifest("calm", reason="INC-42", kvLoadFailure=_FAIL), author="bob@host")
    again = await newer.push()
    assert [source.generation for source in again.schedule[0].policies] == [2]
    await newer.ack(again)
    await eventually(lambda: subscriber_of(served, newer).settled, "it has the new generation")
    assert subscriber_of(served, older).settled
    await older.disconnect()
    await newer.disconnect()


async def test_a_change_is_pushed_and_acknowledged(served: FeedServer) -> None:
    """A push has the full state and the next nonce; it is in force after the acknowledgement."""
    async with Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await answered(served, engine)
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        push = await engine.push()
        assert push.nonce == 2
        assert push.schedule[0].body.kv_load_failure.action == FAILURE_ACTION_FAIL
        assert served.feed.wanted(engine.key) == hash_of(push)
        assert not subscriber_of(served, engine).in_force
        await engine.ack(push)
        subscriber = await answered(served, engine)
        assert subscriber.in_force
        assert subscriber.hash_in_force == hash_of(push)
        assert subscriber.answer is not None
        assert subscriber.answer.time > 0


async def test_only_engines_that_a_change_concerns_get_a_push(served: FeedServer) -> None:
    """An engine that a policy does not select gets no push about it."""
    async with Engine(served.address, "0", tier="a") as one, Engine(served.address, "1", tier="b") as two:
        await one.ack(await one.push())
        await two.ack(await two.push())
        await answered(served, two)
        await served.store.apply(manifest("only-a", selector={"matchLabels": {"tier": "a"}}), author="me")
        assert (await one.push()).nonce == 2
        await served.pauses.set(None, paused=True, author="me", which="all")
        push = await two.push()
        assert (push.nonce, push.paused, list(push.schedule)) == (2, True, [])


async def test_a_refusal_keeps_its_text_and_does_not_come_again(served: FeedServer) -> None:
    """A refusal keeps error, field and hash in force; a refused push is not repeated, the next change is."""
    async with Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await answered(served, engine)
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        await engine.nack(await engine.push(), "no such action", "kvLoadFailure.action", "kept")
        subscriber = await answered(served, engine)
        assert not subscriber.in_force
        assert subscriber.hash_in_force == "kept"
        assert subscriber.answer is not None
        assert (subscriber.answer.error, subscriber.answer.field) == (
            "no such action",
            "kvLoadFailure.action",
        )
        await served.store.delete("decode-default", author="me")
        assert (await engine.push()).nonce == 3


async def test_stale_nonces_are_ignored(served: FeedServer) -> None:
    """An answer whose nonce is not that of the last push changes nothing."""
    async with Engine(served.address) as engine:
        first = await engine.push()
        await engine.ack(first)
        await answered(served, engine)
        await served.store.apply(manifest(), author="me")
        second = await engine.push()
        await engine.ack(first)
        await engine.nack(first, "too late")
        await engine.report(Report(ack=PolicyAck(nonce=99, hash=hash_of(second))))
        # Reports are taken in order: when this one has been, the stale ones were, too.
        await engine.moved("marker")
        await eventually(lambda: subscriber_of(served, engine).hash_in_force == "marker", "all were taken")
        assert not subscriber_of(served, engine).settled
        await engine.ack(second)
        assert (await answered(served, engine)).in_force


async def test_a_burst_becomes_one_push_of_the_newest(served: FeedServer) -> None:
    """Changes during an unanswered push are combined into one push of the newest state."""
    async with Engine(served.address) as engine:
        first = await engine.push()
        for tokens in range(50):
            await served.store.apply(manifest(kvLoadFailure={"maxRecomputeTokens": tokens}), author="me")
        await engine.ack(first)
        second = await engine.push()
        assert second.nonce == 2
        assert second.schedule[0].body.kv_load_failure.max_recompute_tokens == 49
        await engine.ack(second)
        assert (await answered(served, engine)).in_force


async def test_a_change_that_is_taken_back_in_time_is_never_pushed(served: FeedServer) -> None:
    """A change reverted during an unanswered push causes no push; the answer counts for the state."""
    async with Engine(served.address) as engine:
        first = await engine.push()
        await served.store.apply(manifest(), author="me")
        await served.store.delete("decode-default", author="me")
        await engine.ack(first)
        assert (await answered(served, engine)).in_force
        await served.pauses.set(None, paused=True, author="me", which="all")
        assert (await engine.push()).nonce == 2


async def test_an_answer_to_an_earlier_push_says_nothing_about_a_later_one(directory: Path) -> None:
    """A state equal to an acknowledged one is pushed again if another push went out in between."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served, Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await answered(served, engine)
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        assert hash_of(await engine.push())
        await served.store.delete("decode-default", author="me")
        assert not subscriber_of(served, engine).settled
        now[0] += 10
        subscriber_of(served, engine).wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (3, "")
        assert not subscriber_of(served, engine).in_force
        await engine.ack(again)
        assert (await answered(served, engine)).in_force


async def test_a_pause_does_not_wait_for_an_answer(served: FeedServer) -> None:
    """A pause is pushed while an earlier push is unanswered."""
    async with Engine(served.address) as engine:
        await engine.push()
        await served.pauses.set([engine.key], paused=True, author="me", which="engine 0")
        push = await engine.push()
        assert (push.nonce, push.paused) == (2, True)
        await engine.ack(push)
        assert (await answered(served, engine)).in_force


async def test_nothing_is_wanted_of_an_engine_that_never_subscribed(served: FeedServer) -> None:
    """The desired hash of an engine without a subscription is None."""
    assert served.feed.wanted(EngineKey("", "0")) is None
    async with Engine(served.address) as engine:
        await engine.push()
        assert served.feed.wanted(engine.key) == ""


async def test_an_engine_that_comes_back_gets_its_policy_at_once(served: FeedServer) -> None:
    """A reconnecting engine gets the current policy in its first push; nonces start at 1."""
    engine = Engine(served.address)
    await engine.connect()
    await engine.ack(await engine.push())
    await engine.disconnect()
    await eventually(lambda: not subscriber_of(served, engine).connected, "the agent noticed")
    await served.store.apply(manifest(), author="me")
    await engine.connect(hash_in_force="old")
    push = await engine.push()
    assert (push.nonce, hash_of(push)) == (1, served.feed.wanted(engine.key))
    assert subscriber_of(served, engine).hash_in_force == "old"
    await engine.disconnect()


async def test_an_acknowledgement_of_something_else_is_a_refusal(served: FeedServer) -> None:
    """An acknowledgement with another hash is recorded as an error; the policy is not in force."""
    await served.store.apply(manifest(), author="me")
    async with Engine(served.address) as engine:
        await engine.ack(await engine.push(), hash="feedfeedfeedfeed")
        subscriber = await answered(served, engine)
        assert not subscriber.in_force
        assert subscriber.answer is not None
        assert subscriber.answer.error.startswith("it acknowledged hash feedfeedfeed, not ")


@pytest.mark.parametrize(
    "first",
    [
        Report(),
        Report(ack=PolicyAck(nonce=1)),
        Report(subscribe=Subscribe()),
        Report(subscribe=Subscribe(key={"engine": "0"}, model="m" * 5000)),
        Report(subscribe=Subscribe(key={"engine": "0"}, labels={str(n): "" for n in range(200)})),
        Report(subscribe=Subscribe(key={"engine": "0"}, supported_fields=map(str, range(200)))),
        Report(subscribe=Subscribe(key={"engine": "0"}, supported_fields=["x" * 5000])),
        Report(subscribe=Subscribe(key={"engine": "0"}, secret=b"x" * 65)),
        Report(ack=PolicyAck(refused_orders=[OrderRefusal()] * 300_000)),
    ],
    ids=[
        "empty",
        "ack",
        "no engine",
        "long text",
        "many labels",
        "many fields",
        "long field",
        "long secret",
        "bomb",
    ],
)
async def test_a_stream_that_breaks_the_contract_is_refused(served: FeedServer, first: Report) -> None:
    """An invalid first report ends the stream with INVALID_ARGUMENT; no subscriber is recorded."""
    engine = Engine(served.address)
    await engine.connect(first=first)
    assert await engine.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.feed.subscribers() == []
    await engine.disconnect()


async def test_a_second_subscribe_ends_the_stream(served: FeedServer) -> None:
    """A Subscribe after the first report ends the stream with INVALID_ARGUMENT."""
    async with Engine(served.address) as engine:
        await engine.push()
        await engine.report(Report(subscribe=Subscribe(key={"engine": "0"})))
        assert await engine.ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_closing_ends_all_streams(served: FeedServer) -> None:
    """Closing the feed ends each stream with OK."""
    async with Engine(served.address) as engine:
        await engine.push()
        served.feed.close()
        assert await engine.ended() is grpc.StatusCode.OK
