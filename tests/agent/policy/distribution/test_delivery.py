"""The delivery of a push, as engines answer over real gRPC."""

from __future__ import annotations

import asyncio
import time

from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Selection, Target
from penstock.agent.policy.distribution.delivery import KnownEngine, follow_delivery

from tests.support.policy.feed import Engine, FeedServer, eventually
from tests.support.policy.policies import action, manifest

_FAIL = action("fail")


async def test_an_engine_that_pauses_and_refuses_the_policy_is_paused(served: FeedServer) -> None:
    """A refusal of the policy acknowledges a pause; a refusal of a resume stays a refusal."""

    async def last(*, pausing: bool) -> tuple[str, str]:
        steps = follow_delivery(served.feed, list, Selection(), within=60, clock=time.time, pausing=pausing)
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


async def _states(
    served: FeedServer, known: list[KnownEngine], seconds: float
) -> list[tuple[dict[str, str], bool]]:
    steps = follow_delivery(served.feed, lambda: known, Selection(), within=seconds, clock=time.time)
    return [
        ({str(engine.key): engine.state for engine in progress.engines}, progress.done)
        async for progress in steps
    ]


def _known(engine: str, *, connected: bool) -> KnownEngine:
    return KnownEngine(Target(EngineKey("", engine), "tiny", {}), connected)


async def test_a_rollout_ends_when_all_that_are_there_have_answered(served: FeedServer) -> None:
    """Acknowledgements and refusals complete a rollout; a disconnected engine does not delay it."""
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
    """At the deadline engines without an answer are listed as waiting or disconnected."""
    async with Engine(served.address, "0") as engine:
        await engine.push()
        states = await _states(served, [_known("1", connected=True)], 0.05)
        assert states[-1] == ({"0": "waiting", "1": "waiting"}, False)
    # On a busy machine the first of these may be over before the feed hears of the engine's end.
    for seconds in (2.0, 60.0):
        states = await _states_of_one_that_leaves(served, seconds)
        if states[-1][0] == {"0": "disconnected"}:
            break
    assert states[-1] == ({"0": "disconnected"}, False)


async def _states_of_one_that_leaves(served: FeedServer, seconds: float) -> list[tuple[dict[str, str], bool]]:
    async with Engine(served.address, "0") as engine:
        await engine.push()
        watching = asyncio.ensure_future(_states(served, [], seconds))
        await eventually(
            lambda: served.feed.changed.waiting or watching.done(), "the rollout is being followed"
        )
    return await asyncio.wait_for(watching, 120)
