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
    """Let the engine acknowledge every push, repeated ones included."""

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
    """The desired hash of a disconnected engine follows the policy's expiry."""
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


async def test_a_hung_engine_delays_no_other_and_gets_the_newest_in_the_end(directory: Path) -> None:
    """A hung engine delays no other; after the patience it gets a newer push."""
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
    """An unanswered push is repeated after the patience; its waiting time counts from the first one."""
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
    """An engine that expired its policy early gets it again after the patience, with the time left."""
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


class _Clocks:
    """A time of day that a test sets, and a clock that nothing sets."""

    def __init__(self) -> None:
        self.now, self.steady = time.time(), 100.0

    def pass_by(self, seconds: float) -> None:
        """Let time go by."""
        self.now, self.steady = self.now + seconds, self.steady + seconds

    async def applied(self, served: FeedServer, name: str, seconds: int) -> None:
        """Apply a policy of its own content that ends after *seconds* by the time of day."""
        expires = datetime.fromtimestamp(self.now + seconds, UTC).isoformat()
        limits = {"maxRecomputeItems": seconds, **action("auto")}
        await served.store.apply(manifest(name, ecLoadFailure=limits, expiresAt=expires), author="me")


async def _next(served: FeedServer, engine: Engine) -> list[float]:
    """Wake the stream, answer its push, and return for how long each step of it but the last is valid."""
    subscriber_of(served, engine).wake.notify()
    push = await engine.push()
    await engine.ack(push)
    await answered(served, engine)
    return [round(entry.valid_for.ToNanoseconds() / 1e9, 3) for entry in push.schedule[:-1]]


async def test_no_step_of_the_clock_makes_a_time_to_live_longer(directory: Path) -> None:
    """Half an hour is half an hour, also if the clock is set back an hour meanwhile; a later policy has its own."""
    clocks = _Clocks()
    async with (
        running_feed(directory, clock=lambda: clocks.now, steady=lambda: clocks.steady) as served,
        Engine(served.address) as engine,
    ):
        await engine.ack(await engine.push())
        await clocks.applied(served, "a", 1_800)
        assert await _next(served, engine) == [1_800]
        clocks.now -= 3_600
        clocks.pass_by(600)
        assert await _next(served, engine) == [1_200]
        await clocks.applied(served, "b", 1_500)
        assert await _next(served, engine) == [1_200, 300]
        clocks.pass_by(1_200)
        assert await _next(served, engine) == [300]
        clocks.pass_by(300)
        assert await _next(served, engine) == []
        assert served.feed.wanted(engine.key) == ""


async def test_a_clock_that_is_set_forward_reaches_the_end_of_a_policy(directory: Path) -> None:
    """``expiresAt`` is a point in time. Set back again, the clock leaves what the steady clock says."""
    clocks = _Clocks()
    async with (
        running_feed(directory, clock=lambda: clocks.now, steady=lambda: clocks.steady) as served,
        Engine(served.address) as engine,
    ):
        await engine.ack(await engine.push())
        await clocks.applied(served, "a", 1_800)
        assert await _next(served, engine) == [1_800]
        clocks.now += 3_600
        assert await _next(served, engine) == []
        clocks.now -= 3_600
        clocks.pass_by(60)
        assert await _next(served, engine) == [1_740]


async def test_a_lost_push_is_sent_again_though_the_clock_is_set_back(directory: Path) -> None:
    """It does not wait until the clock is where it was."""
    clocks = _Clocks()
    async with (
        running_feed(directory, clock=lambda: clocks.now, steady=lambda: clocks.steady) as served,
        Engine(served.address) as engine,
    ):
        first = await engine.push()
        clocks.now -= 3_600
        clocks.pass_by(10)
        subscriber_of(served, engine).wake.notify()
        again = await engine.push()
        assert (again.nonce, hash_of(again)) == (2, hash_of(first))
        await engine.ack(again)
        answer = (await answered(served, engine)).answer
        assert answer is not None
        assert answer.took >= 0


async def test_the_schedule_is_pushed_again_when_a_policy_expires(served: FeedServer) -> None:
    """At an expiry the agent pushes the next schedule, which the engine already follows."""
    expires = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    await served.store.apply(manifest(kvLoadFailure=_FAIL, expiresAt=expires), author="me")
    async with Engine(served.address) as engine:
        push = await engine.push()
        assert [entry.hash == "" for entry in push.schedule] == [False, True]
        assert push.schedule[0].valid_for.ToTimedelta() <= timedelta(seconds=5)
        await engine.ack(push)
        await engine.moved("")
        again = await engine.push()
        assert (again.nonce, list(again.schedule)) == (2, [])
        assert served.feed.wanted(engine.key) == ""
        await engine.ack(again)
        assert (await answered(served, engine)).in_force
