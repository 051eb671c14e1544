"""An answer about many engines does not hold the loop, and is of one moment all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.engines import list_engines
from penstock.agent.model import EngineKey, Source
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness


def test_the_loop_goes_on_while_many_engines_are_listed(harness: AdminHarness) -> None:
    """What is connected meanwhile is not in the answer, unless the policy feed has changed: then it is made anew."""
    for number in range(40):
        harness.source(str(number))

    async def listed(*, changed: bool) -> int:
        agent = harness.service.agent
        answer = asyncio.ensure_future(list_engines(agent, admin.ListEnginesRequest()))
        await asyncio.sleep(0)
        assert not answer.done()
        new = Source(epoch=7 + changed, key=EngineKey("new", str(changed)), process="engine-core")
        agent.registry.connect(new, 0)
        if changed:
            agent.feed.changed.notify()
        return len((await answer).engines)

    assert harness.run(listed(changed=False)) == 40
    assert harness.run(listed(changed=True)) == 42
