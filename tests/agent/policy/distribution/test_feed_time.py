"""The policy feed in time: expiries, lost pushes, hung engines, clocks that differ."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

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
    from collections.abc import AsyncIterator
    from pathlib import Path


_FAIL = action("fail")


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


async def test_what_is_wanted_of_an_engine_that_is_away_runs_down(directory: Path) -> None:
    """A policy that expires meanwhile is not held against the engine, which moves on by itself."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served:
        expires = datetime.fromtimestamp(now[0] + 60, UTC).isoformat()
        await served.store.apply(manifest(kvLoadFailure=_FAIL, expiresAt=expires), author="me")
        async with Engine(served.address) as engine:
            push = await engine.push()
        await eventually(lambda: not subscriber_of(served, engine).connected, "the agent noticed")
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
            assert not subscriber_of(served, hung).settled
            assert subscriber_of(served, hung).waiting_since() is not None
            async with _obeying(hung):
                await eventually(lambda: _has_policy(served, hung), "it has it in the end")


async def test_a_push_that_got_lost_is_sent_again(directory: Path) -> None:
    """Also where nothing has changed since; what it says counts as unanswered from the first one on."""
    now = [time.time()]
    async with running_feed(directory, clock=lambda: now[0]) as served, Engine(served.address) as engine:
        first = await engine.push()
        subscriber, since = subscriber_of(served, engine), now[0]
        now[0] += 10
        subscriber.wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (2, hash_of(first))
        assert subscriber.waiting_since() == since
        await engine.ack(again)
        assert (await answered(served, engine)).in_force
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
        subscriber = await answered(served, engine)
        await engine.moved("")
        await eventually(lambda: subscriber.hash_in_force == "", "it has moved on")
        assert not subscriber.due(now[0] + 9, 10)
        now[0] += 10
        subscriber.wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (3, hash_of(push))
        assert again.schedule[0].valid_for.ToTimedelta() == timedelta(seconds=50)
        await engine.ack(again)
        assert (await answered(served, engine)).in_force
        assert not subscriber.due(now[0] + 20, 10)


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
        assert (await answered(served, engine)).in_force
