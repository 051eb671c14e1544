"""The follower of sources: what it logs, and what it calls a problem."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.policy.sources import MAX_ITEMS, SourceItem, SourceSet
from penstock.agent.policy.sources.follower import SourceFollower
from penstock.agent.policy.store.sqlite_store import PolicyStore
from structlog.testing import capture_logs

from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from penstock.agent.policy.sources import SourceSink
    from penstock.agent.policy.store import PolicyDatabase


class _Source:
    """A source whose sets a test hands over."""

    def __init__(self, name: str, kind: str = "nats") -> None:
        self.name = name
        self.kind = kind
        self.sink: SourceSink | None = None

    async def run(self, sink: SourceSink) -> None:
        self.sink = sink
        sink.connected()
        await self.brings()
        await asyncio.Event().wait()

    async def brings(self, *names: str, broken: tuple[str, ...] = ()) -> None:
        """Hand over good policies of these names, and some that are no manifests."""
        assert self.sink is not None
        good = {name: SourceItem(document(name, kvLoadFailure=action("auto"))) for name in names}
        await self.sink.hand_over(SourceSet(good | dict.fromkeys(broken, SourceItem({})), "1"))


async def test_a_refusal_is_logged_once(database: PolicyDatabase) -> None:
    """Not again with each other change; again after it was right; also where the other source causes it."""
    one, two = _Source("one"), _Source("two")
    follower = SourceFollower([one, two], PolicyStore(database))
    with capture_logs() as logs:
        await follower.start()

        def refusals() -> list[tuple[str, str]]:
            found = [(each["source"], each["policy"]) for each in logs if "refused" in each["event"]]
            logs.clear()
            return found

        await two.brings("a", broken=("b",))
        assert refusals() == [("two", "b")]
        await two.brings("a", "c", broken=("b",))
        assert refusals() == []
        await one.brings("a")
        assert refusals() == [("two", "a")]
        await one.brings()
        await two.brings("a", "b")
        await two.brings("a", broken=("b",))
        assert ("two", "b") in refusals()
    await follower.stop()


async def test_a_set_that_is_refused_as_a_whole_is_a_problem(database: PolicyDatabase) -> None:
    """The source is connected, and what it brings is not in force: the agent is degraded."""
    source = _Source("one")
    follower = SourceFollower([source], PolicyStore(database))
    await follower.start()
    await source.brings("a")
    assert follower.problem() == ""
    await source.brings(*(f"p{number}" for number in range(MAX_ITEMS + 1)))
    assert follower.problem() == (
        f"the policy source one brings what is not in force: it has {MAX_ITEMS + 1} policies, the limit is {MAX_ITEMS}; "
        "the last ones stay in force"
    )
    await source.brings("a", "b")
    assert follower.problem() == ""
    await follower.stop()
