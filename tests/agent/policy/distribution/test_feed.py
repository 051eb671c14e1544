"""The policy feed, over real gRPC, with an engine that answers as the test says."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.model import EngineKey, digest
from penstock.agent.parsing.label_selector import Selection, Target
from penstock.agent.policy.distribution.rollout import KnownEngine, follow_rollout
from penstock.proto.v1.policy_pb2 import FAILURE_ACTION_FAIL, OrderRefusal, PolicyAck, Report, Subscribe
from structlog.testing import capture_logs

from tests.support.policy.feed import Engine, FeedServer, eventually, hash_of, running_feed
from tests.support.policy.policies import action, manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.agent.policy.distribution.subscriber import Subscriber

_FAIL = action("fail")


def _subscriber(served: FeedServer, engine: Engine) -> Subscriber:
    subscriber = served.feed.subscriber(engine.key)
    assert subscriber is not None
    return subscriber


async def _answered(served: FeedServer, engine: Engine) -> Subscriber:
    await eventually(lambda: _subscriber(served, engine).settled, "the engine has answered")
    return _subscriber(served, engine)


def _has_policy(served: FeedServer, engine: Engine) -> bool:
    subscriber = served.feed.subscriber(engine.key)
    return subscriber is not None and subscriber.in_force and served.feed.wanted(engine.key) != ""


@asynccontextmanager
async def _obeying(engine: Engine) -> AsyncIterator[None]:
    """Let the engine acknowledge every push, also one that is sent again because it took its time."""

    async def obey() -> None:
        while True:
            await engine.ack(await engine.push())

    task = asyncio.ensure_future(obey())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_first_push_comes_at_once(served: FeedServer) -> None:
    """An engine that no policy selects gets an empty policy: vLLM's own configuration holds."""
    async with Engine(served.address) as engine:
        push = await engine.push()
        assert (push.nonce, list(push.schedule), push.paused) == (1, [], False)
        await engine.ack(push)
        assert (await _answered(served, engine)).in_force


async def test_names_of_policies_go_to_engines_that_take_them(served: FeedServer) -> None:
    """Name, generation and fields, no author; an older engine would refuse the push, so it gets none, and no new generation."""
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
    await eventually(lambda: _subscriber(served, newer).settled, "it has the new generation")
    assert _subscriber(served, older).settled
    await older.disconnect()
    await newer.disconnect()


async def test_a_change_is_pushed_and_acknowledged(served: FeedServer) -> None:
    """Full state, the next nonce, and in force only after the ACK."""
    async with Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await _answered(served, engine)
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        push = await engine.push()
        assert push.nonce == 2
        assert push.schedule[0].body.kv_load_failure.action == FAILURE_ACTION_FAIL
        assert served.feed.wanted(engine.key) == hash_of(push)
        assert not _subscriber(served, engine).in_force
        await engine.ack(push)
        subscriber = await _answered(served, engine)
        assert subscriber.in_force
        assert subscriber.hash_in_force == hash_of(push)
        assert subscriber.answer is not None
        assert subscriber.answer.time > 0


async def test_only_engines_that_a_change_concerns_get_a_push(served: FeedServer) -> None:
    """The other one's next push is about something else."""
    async with Engine(served.address, "0", tier="a") as one, Engine(served.address, "1", tier="b") as two:
        await one.ack(await one.push())
        await two.ack(await two.push())
        await _answered(served, two)
        await served.store.apply(manifest("only-a", selector={"matchLabels": {"tier": "a"}}), author="me")
        assert (await one.push()).nonce == 2
        await served.pauses.set(None, paused=True, author="me", which="all")
        push = await two.push()
        assert (push.nonce, push.paused, list(push.schedule)) == (2, True, [])


async def test_a_refusal_keeps_its_text_and_does_not_come_again(served: FeedServer) -> None:
    """The error, the field and the hash that stays are there; the next change is tried."""
    async with Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await _answered(served, engine)
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        await engine.nack(await engine.push(), "no such action", "kvLoadFailure.action", "kept")
        subscriber = await _answered(served, engine)
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
    """An answer to anything but the last push changes nothing."""
    async with Engine(served.address) as engine:
        first = await engine.push()
        await engine.ack(first)
        await _answered(served, engine)
        await served.store.apply(manifest(), author="me")
        second = await engine.push()
        await engine.ack(first)
        await engine.nack(first, "too late")
        await engine.report(Report(ack=PolicyAck(nonce=99, hash=hash_of(second))))
        # Reports are taken in order: when this one has been, the stale ones were, too.
        await engine.moved("marker")
        await eventually(lambda: _subscriber(served, engine).hash_in_force == "marker", "all were taken")
        assert not _subscriber(served, engine).settled
        await engine.ack(second)
        assert (await _answered(served, engine)).in_force


async def test_a_burst_becomes_one_push_of_the_newest(served: FeedServer) -> None:
    """While a push is unanswered, changes pile up into one."""
    async with Engine(served.address) as engine:
        first = await engine.push()
        for tokens in range(50):
            await served.store.apply(manifest(kvLoadFailure={"maxRecomputeTokens": tokens}), author="me")
        await engine.ack(first)
        second = await engine.push()
        assert second.nonce == 2
        assert second.schedule[0].body.kv_load_failure.max_recompute_tokens == 49
        await engine.ack(second)
        assert (await _answered(served, engine)).in_force


async def test_a_change_that_is_taken_back_in_time_is_never_pushed(served: FeedServer) -> None:
    """What is wanted is again what was pushed: the answer counts for it."""
    async with Engine(served.address) as engine:
        first = await engine.push()
        await served.store.apply(manifest(), author="me")
        await served.store.delete("decode-default", author="me")
        await engine.ack(first)
        assert (await _answered(served, engine)).in_force
        await served.pauses.set(None, paused=True, author="me", which="all")
        assert (await engine.push()).nonce == 2


async def test_an_answer_to_an_earlier_push_says_nothing_about_a_later_one(directory: Path) -> None:
    """What is wanted is again what was acknowledged once; but another push, which may be in force, went out since."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served, Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await _answered(served, engine)
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        assert hash_of(await engine.push())
        await served.store.delete("decode-default", author="me")
        assert not _subscriber(served, engine).settled
        now[0] += 10
        _subscriber(served, engine).wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (3, "")
        assert not _subscriber(served, engine).in_force
        await engine.ack(again)
        assert (await _answered(served, engine)).in_force


async def test_a_pause_does_not_wait_for_an_answer(served: FeedServer) -> None:
    """The kill switch overtakes an unanswered push."""
    async with Engine(served.address) as engine:
        await engine.push()
        await served.pauses.set([engine.key], paused=True, author="me", which="engine 0")
        push = await engine.push()
        assert (push.nonce, push.paused) == (2, True)
        await engine.ack(push)
        assert (await _answered(served, engine)).in_force


async def test_an_engine_that_pauses_and_refuses_the_policy_is_paused(served: FeedServer) -> None:
    """The kill switch works whatever else is in the push; its end and the policy are refused."""

    async def last(*, pausing: bool) -> tuple[str, str]:
        steps = follow_rollout(served.feed, list, Selection(), within=60, clock=time.time, pausing=pausing)
        progress = [step async for step in steps][-1]
        assert progress.done
        (item,) = progress.engines
        return item.state, item.error

    async with Engine(served.address) as engine:
        await engine.ack(await engine.push())
        await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
        await engine.nack(await engine.push(), "not with me")
        for paused, state in ((True, "acknowledged"), (False, "refused")):
            await served.pauses.set(None, paused=paused, author="me", which="all")
            await engine.nack(await engine.push(), "not with me")
            assert await last(pausing=paused) == (state, "not with me")
            assert await last(pausing=False) == ("refused", "not with me")


async def test_nothing_is_wanted_of_an_engine_that_never_subscribed(served: FeedServer) -> None:
    """What selects it is not known before, so neither is whether it has it."""
    assert served.feed.wanted(EngineKey("", "0")) is None
    async with Engine(served.address) as engine:
        await engine.push()
        assert served.feed.wanted(engine.key) == ""


async def test_what_is_wanted_of_an_engine_that_is_away_runs_down(directory: Path) -> None:
    """A policy that expires meanwhile is not held against the engine, which moves on by itself."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served:
        expires = datetime.fromtimestamp(now[0] + 60, UTC).isoformat()
        await served.store.apply(manifest(kvLoadFailure=_FAIL, expiresAt=expires), author="me")
        async with Engine(served.address) as engine:
            push = await engine.push()
        await eventually(lambda: not _subscriber(served, engine).connected, "the agent noticed")
        assert served.feed.wanted(engine.key) == hash_of(push) != ""
        now[0] += 61
        assert served.feed.wanted(engine.key) == ""


async def test_a_hung_engine_holds_nobody_and_gets_the_newest_in_the_end(directory: Path) -> None:
    """After the agent's patience a newer push overtakes the one without an answer."""
    async with (
        running_feed(directory, patience=0.2) as served,
        Engine(served.address, "0") as hung,
        Engine(served.address, "1") as well,
    ):
        await hung.push()
        async with _obeying(well):
            await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
            await eventually(lambda: _has_policy(served, well), "the other one has it")
            assert not _subscriber(served, hung).settled
            assert _subscriber(served, hung).waiting_since() is not None
            async with _obeying(hung):
                await eventually(lambda: _has_policy(served, hung), "it has it in the end")


async def test_a_push_that_got_lost_is_sent_again(directory: Path) -> None:
    """Also where nothing has changed since; what it says counts as unanswered from the first one on."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served, Engine(served.address) as engine:
        first = await engine.push()
        subscriber, since = _subscriber(served, engine), now[0]
        now[0] += 10
        subscriber.wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (2, hash_of(first))
        assert subscriber.waiting_since() == since
        await engine.ack(again)
        assert (await _answered(served, engine)).in_force
        assert subscriber.answer is not None
        assert subscriber.answer.took == 10


async def test_an_engine_whose_clock_runs_ahead_gets_its_policy_again(directory: Path) -> None:
    """It has moved on and stays so beyond the agent's patience; a moment's difference is none."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served, Engine(served.address) as engine:
        await engine.ack(await engine.push())
        expires = datetime.fromtimestamp(now[0] + 60, UTC).isoformat()
        await served.store.apply(manifest(kvLoadFailure=_FAIL, expiresAt=expires), author="me")
        push = await engine.push()
        await engine.ack(push)
        subscriber = await _answered(served, engine)
        await engine.moved("")
        await eventually(lambda: subscriber.hash_in_force == "", "it has moved on")
        assert not subscriber.due(now[0] + 9, 10)
        now[0] += 10
        subscriber.wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (3, hash_of(push))
        assert again.schedule[0].valid_for.ToTimedelta() == timedelta(seconds=50)
        await engine.ack(again)
        assert (await _answered(served, engine)).in_force
        assert not subscriber.due(now[0] + 20, 10)


async def test_an_engine_that_comes_back_gets_its_policy_at_once(served: FeedServer) -> None:
    """Also what changed while it was away; nonces begin anew."""
    engine = Engine(served.address)
    await engine.connect()
    await engine.ack(await engine.push())
    await engine.disconnect()
    await eventually(lambda: not _subscriber(served, engine).connected, "the agent noticed")
    await served.store.apply(manifest(), author="me")
    await engine.connect(hash_in_force="old")
    push = await engine.push()
    assert (push.nonce, hash_of(push)) == (1, served.feed.wanted(engine.key))
    assert _subscriber(served, engine).hash_in_force == "old"
    await engine.disconnect()


async def test_a_second_stream_of_the_same_engine_takes_over(served: FeedServer) -> None:
    """The first one ends with ABORTED."""
    async with Engine(served.address) as old:
        await old.push()
        async with Engine(served.address) as new:
            await new.push()
            assert await old.ended() is grpc.StatusCode.ABORTED
            assert _subscriber(served, new).connected


async def test_two_engines_of_one_name_are_logged(served: FeedServer) -> None:
    """They take the feed from each other; one engine that connects again is nothing to log."""
    async with Engine(served.address) as old:
        await old.push()
        with capture_logs() as logs:
            async with Engine(served.address) as again:
                await again.push()
                assert not [line for line in logs if line["log_level"] == "warning"]
                other = Engine(served.address)
                await other.connect(epoch=2)
                await other.push()
                (warning,) = [line for line in logs if line["log_level"] == "warning"]
                await other.disconnect()
    assert "PENSTOCK_SERVER" in warning["event"]


@pytest.mark.parametrize("secret", [b"x" * 16, b""], ids=["another secret", "none"])
async def test_a_stranger_does_not_take_an_engine_s_policy_stream(served: FeedServer, secret: bytes) -> None:
    """It is refused, and can answer nothing; the engine's own stream goes on."""
    engine, stranger = Engine(served.address), Engine(served.address)
    await engine.connect(secret=b"o" * 16)
    await engine.ack(await engine.push())
    await _answered(served, engine)
    with capture_logs() as logs:
        await stranger.connect(epoch=2, secret=secret)
        assert await stranger.ended() is grpc.StatusCode.PERMISSION_DENIED
        await stranger.disconnect()
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert "PENSTOCK_SERVER" in warning["error"]
    assert served.refused == ["held"]
    await served.store.apply(manifest(kvLoadFailure=_FAIL), author="me")
    push = await engine.push()
    assert push.nonce == 2
    await engine.ack(push)
    assert (await _answered(served, engine)).in_force
    await engine.disconnect()


async def test_the_ingest_s_holder_is_the_feed_s(served: FeedServer) -> None:
    """A process that sends as the EngineCore keeps others from its policy, before it has subscribed itself."""
    engine = Engine(served.address)
    hold = served.owners.enter(engine.key, digest(b"o" * 16), lambda: None)
    await engine.connect(secret=b"x" * 16)
    assert await engine.ended() is grpc.StatusCode.PERMISSION_DENIED
    await engine.disconnect()
    await engine.connect(secret=b"o" * 16)
    await engine.push()
    served.owners.leave(hold)
    await engine.disconnect()


async def test_an_engine_takes_its_policy_stream_back(served: FeedServer) -> None:
    """Its connection broke off for a moment; what subscribed meanwhile is cut off and answers no more."""
    engine, stranger = Engine(served.address), Engine(served.address)
    await engine.connect(secret=b"o" * 16)
    await engine.push()
    await engine.disconnect()
    await eventually(lambda: not _subscriber(served, engine).connected, "the agent noticed")
    await stranger.connect(secret=b"x" * 16)
    await stranger.push()
    hold = served.owners.enter(engine.key, digest(b"o" * 16), lambda: None)
    assert await stranger.ended() is grpc.StatusCode.ABORTED
    await engine.connect(secret=b"o" * 16)
    await engine.ack(await engine.push())
    assert (await _answered(served, engine)).in_force
    served.owners.leave(hold)
    await engine.disconnect()
    await stranger.disconnect()


async def test_the_schedule_is_pushed_again_when_a_policy_expires(served: FeedServer) -> None:
    """The agent's own clock takes the step that the engine takes by itself."""
    expires = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    await served.store.apply(manifest(kvLoadFailure=_FAIL, expiresAt=expires), author="me")
    async with Engine(served.address) as engine:
        push = await engine.push()
        assert [entry.hash == "" for entry in push.schedule] == [False, True]
        assert push.schedule[0].valid_for.ToTimedelta() <= timedelta(seconds=2)
        await engine.ack(push)
        await engine.moved("")
        again = await engine.push()
        assert (again.nonce, list(again.schedule)) == (2, [])
        assert served.feed.wanted(engine.key) == ""
        await engine.ack(again)
        assert (await _answered(served, engine)).in_force


async def test_an_acknowledgement_of_something_else_is_a_refusal(served: FeedServer) -> None:
    """In force is only what was asked for."""
    await served.store.apply(manifest(), author="me")
    async with Engine(served.address) as engine:
        await engine.ack(await engine.push(), hash="feedfeedfeedfeed")
        subscriber = await _answered(served, engine)
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
    """INVALID_ARGUMENT, and nothing is remembered of it."""
    engine = Engine(served.address)
    await engine.connect(first=first)
    assert await engine.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.feed.subscribers() == []
    await engine.disconnect()


async def test_a_second_subscribe_ends_the_stream(served: FeedServer) -> None:
    """It can only come first."""
    async with Engine(served.address) as engine:
        await engine.push()
        await engine.report(Report(subscribe=Subscribe(key={"engine": "0"})))
        assert await engine.ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_closing_ends_all_streams(served: FeedServer) -> None:
    """An agent that drains does not wait for its engines."""
    async with Engine(served.address) as engine:
        await engine.push()
        served.feed.close()
        assert await engine.ended() is grpc.StatusCode.OK


async def _states(
    served: FeedServer, known: list[KnownEngine], seconds: float
) -> list[tuple[dict[str, str], bool]]:
    steps = follow_rollout(served.feed, lambda: known, Selection(), within=seconds, clock=time.time)
    return [
        ({str(engine.key): engine.state for engine in progress.engines}, progress.done)
        async for progress in steps
    ]


def _known(engine: str, *, connected: bool) -> KnownEngine:
    return KnownEngine(Target(EngineKey("", engine), "tiny", {}), connected)


async def test_a_rollout_ends_when_all_that_are_there_have_answered(served: FeedServer) -> None:
    """Acknowledged and refused are answers; who was gone all the time is shown only."""
    async with Engine(served.address, "0") as one, Engine(served.address, "1") as two:
        first, second = await one.push(), await two.push()
        watching = asyncio.ensure_future(_states(served, [_known("7", connected=False)], 60))
        await eventually(lambda: served.feed.changed.waiting, "the rollout is being followed")
        await one.ack(first)
        await two.nack(second, "no")
        states = await asyncio.wait_for(watching, 60)
    assert states[0] == ({"0": "waiting", "1": "waiting", "7": "disconnected"}, False)
    assert states[-1] == ({"0": "acknowledged", "1": "refused", "7": "disconnected"}, True)


async def test_a_rollout_ends_at_its_deadline(served: FeedServer) -> None:
    """An engine that never subscribed, and one that went away meanwhile, are named."""
    async with Engine(served.address, "0") as engine:
        await engine.push()
        states = await _states(served, [_known("1", connected=True)], 0.05)
        assert states[-1] == ({"0": "waiting", "1": "waiting"}, False)
        watching = asyncio.ensure_future(_states(served, [], 2.0))
        await eventually(lambda: served.feed.changed.waiting, "the rollout is being followed")
    states = await asyncio.wait_for(watching, 60)
    assert states[-1] == ({"0": "disconnected"}, False)
