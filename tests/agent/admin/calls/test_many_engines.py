"""An answer about many engines does not hold the loop, and is of one moment all the same."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from penstock.agent.admin.calls import engines
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.policy.feed import eventually
from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.agent.admin_server import AdminHarness


def test_the_loop_goes_on_while_many_engines_are_listed(harness: AdminHarness) -> None:
    """Also where the policy feed changes meanwhile; what is connected then is not in the answer."""
    for number in range(40):
        harness.source(str(number))

    async def listed() -> tuple[int, int]:
        agent, turns = harness.service.agent, 0
        answer = asyncio.ensure_future(engines.list_engines(agent, admin.ListEnginesRequest()))
        await asyncio.sleep(0)
        agent.registry.connect(Source(epoch=7, key=EngineKey("new", "0"), process="engine-core"), 0)
        while not answer.done():
            agent.feed.changed.notify()
            turns += 1
            await asyncio.sleep(0)
        return len((await answer).engines), turns

    count, turns = harness.run(listed())
    assert count == 40
    assert turns >= 2


def test_all_are_of_one_version_of_the_policies(harness: AdminHarness) -> None:
    """The loop goes on between two of them, and meanwhile all get another policy, which they acknowledge."""
    for number in range(4):
        harness.source(str(number))
        harness.engine(str(number))

    async def listed() -> list[admin.Engine]:
        agent = harness.service.agent
        rows = engines._engines(agent, admin.ListEnginesRequest())
        first = list(islice(rows, 1))
        await agent.store.apply(manifest("p"), author="test")
        await eventually(
            lambda: all(each.hash_in_force and each.settled for each in agent.feed.subscribers()), "they obey"
        )
        return [*first, *rows]

    def shown(rows: Iterable[admin.Engine]) -> set[tuple[bool, tuple[str, ...], bool]]:
        return {
            (bool(each.wanted_hash), tuple(policy.name for policy in each.wanted_policies), each.in_sync)
            for each in rows
        }

    assert shown(harness.run(listed())) == {(False, (), True)}
    assert shown(harness.stub.ListEngines(admin.ListEnginesRequest()).engines) == {(True, ("p",), True)}
