"""The follower of sources: what it logs, and what it calls a problem."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import ImpossibleError
from penstock.agent.policy.sources import MAX_ITEMS, SourceItem, SourceSet
from penstock.agent.policy.sources.follower import SECOND_LOOK_SECONDS, SourceFollower
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


async def test_an_emptied_source_behind_another_needs_a_second_look(database: PolicyDatabase) -> None:
    """All its policies are another's at the moment; it brings them when the other one stops to."""
    one, two = _Source("one"), _Source("two")
    store = PolicyStore(database)
    follower = SourceFollower([one, two], store)
    await follower.start()
    await one.brings("a")
    await two.brings("a")
    await two.brings()
    await one.brings("b")
    assert {each.manifest.name: each.owner for each in store.policies()} == {"a": "two", "b": "one"}
    await follower.stop()


async def test_too_many_policies_are_not_none(
    database: PolicyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two empty sets they begin the second look anew."""
    source = _Source("one")
    store = PolicyStore(database)
    follower = SourceFollower([source], store)
    await follower.start()
    await source.brings("a")
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    await source.brings()
    await source.brings(*(f"p{number}" for number in range(MAX_ITEMS + 1)))
    now += SECOND_LOOK_SECONDS
    await source.brings()
    assert [each.manifest.name for each in store.policies()] == ["a"]
    now += SECOND_LOOK_SECONDS
    await source.brings()
    assert store.policies() == ()
    await follower.stop()


async def test_a_source_that_is_away_from_the_start_has_policies(database: PolicyDatabase) -> None:
    """Its state says how many stay in force."""
    source = _Source("one")
    follower = SourceFollower([source], PolicyStore(database))
    await follower.start()
    await source.brings("a", "b")
    await follower.stop()
    (state,) = SourceFollower([_Source("one")], PolicyStore(database)).states()
    assert (state.state, state.accepted) == ("connecting", 2)


async def test_a_refusal_from_before_a_write_does_not_answer_for_it(database: PolicyDatabase) -> None:
    """Who waits for a manifest that has been written since goes on waiting; without a revision each refusal counts."""
    source = _Source("nats://n1/bucket")
    follower = SourceFollower([source], PolicyStore(database))
    await follower.start()
    await source.brings(broken=("a",))
    assert not follower.brings("nats", "bucket", "a", "digest", revision=2)
    for revision in (0, 1):
        with pytest.raises(ImpossibleError, match="the agent refuses policy 'a'"):
            follower.brings("nats", "bucket", "a", "digest", revision=revision)
    await follower.stop()
