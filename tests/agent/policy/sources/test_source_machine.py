"""State machine of sources, follower and store beside a model of the documents: precedence, mistakes, restarts, second looks."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.agent.errors import OwnedError
from penstock.agent.policy.sources import MAX_ITEMS, SourceItem, SourceSet
from penstock.agent.policy.sources.follower import SourceFollower
from penstock.agent.policy.sources.source_sets import CheckedSet
from penstock.agent.policy.store import OwnedManifest
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.examples import examples
from tests.support.policy.policies import NOW, action, document, manifest
from tests.support.policy.source_model import BY_HAND, Brought, Held, SourceModel

if TYPE_CHECKING:
    from penstock.agent.policy.sources import SourceSink
    from penstock.agent.policy.sources.follower import FollowedSource

_KINDS = {
    "nats://n:1/p": "nats",
    "kubernetes:ns": "kubernetes",
    "nats://m:1/p": "nats",
    "file:p.yaml": "file",
}
_REMOTE = st.sampled_from([name for name, kind in _KINDS.items() if kind != "file"])
_NAMES = st.sampled_from("abc")
_VALUES = st.sampled_from(["recompute", "fail", "auto"])
_BROUGHT = st.builds(Brought, _VALUES, st.sampled_from(["", "", "", "refused", "misplaced", "expired"]))
# Sums of them are exact.
_SECONDS = st.sampled_from([0.5, 4.0, 9.75, 10.0])
_ORDERS = st.permutations(list(_KINDS)).flatmap(
    lambda order: st.integers(1, len(order)).map(lambda count: order[:count])
)


class _ManualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until a test moves it."""

    now = 1_000.0

    def time(self) -> float:
        return self.now


class _Source:
    """A source whose sets the machine hands over; it is away at first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = _KINDS[name]
        self.sink: SourceSink | None = None

    async def run(self, sink: SourceSink) -> None:
        self.sink = sink
        sink.away("not reached yet")
        await asyncio.Event().wait()


def _item(name: str, brought: Brought) -> SourceItem:
    spec: dict[str, Any] = {"kvLoadFailure": action(brought.value)}
    if brought.fault == "refused":
        return SourceItem(document(name, kvLoadFailure=action("perhaps")))
    if brought.fault == "expired":
        spec["expiresAt"] = "2026-11-20T11:00:00Z"
    return SourceItem(document("other" if brought.fault == "misplaced" else name, **spec))


def _for_model(found: dict[str, Brought]) -> dict[str, Brought]:
    return {
        name: Brought(each.value, "refused" if each.fault == "misplaced" else each.fault)
        for name, each in found.items()
    }


class Sources(RuleBasedStateMachine):
    """A follower with its store, and the model of what is in force."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = _ManualLoop()
        self.root = Path(tempfile.mkdtemp(prefix="ps-"))
        self.model = SourceModel()
        self.database: PolicyDatabase | None = None
        self.sources: dict[str, _Source] = {}

    def teardown(self) -> None:
        """End the sources, close the database and remove it."""
        if self.database is not None:
            self._run(self.follower.stop())
            self.database.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.root)

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def _followed(self, source: str) -> FollowedSource:
        return cast("FollowedSource", self.sources[source].sink)

    def _held(self) -> dict[str, Held]:
        return {
            each.manifest.name: Held(str(each.manifest.leaves["kvLoadFailure.action"]), each.owner)
            for each in self.store.policies()
        }

    @initialize(order=_ORDERS)
    def first(self, order: list[str]) -> None:
        """Start the agent with some sources in some order; it reaches none of them."""
        self._start(order)

    def _start(self, order: list[str]) -> None:
        self.database = PolicyDatabase.open(self.root)
        self.store = PolicyStore(self.database, clock=NOW.timestamp)
        self.sources = {name: _Source(name) for name in order}
        self.follower = SourceFollower(list(self.sources.values()), self.store, clock=NOW.timestamp)
        # As the daemon does.
        self._run(self.store.release_files(self.follower.owns))
        self._run(self.follower.start())
        self.model.start(order)

    @rule(order=_ORDERS)
    def restart(self, order: list[str]) -> None:
        """Restart the agent on its database with other sources, in another order; none of them is there yet."""
        assert self.database is not None
        names = self._held().keys()
        self._run(self.follower.stop())
        self.database.close()
        self._start(order)
        assert self._held().keys() == names

    @rule(seconds=_SECONDS)
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.now += seconds

    @rule(source=_REMOTE, found=st.dictionaries(_NAMES, _BROUGHT, min_size=1, max_size=3))
    def bring(self, source: str, found: dict[str, Brought]) -> None:
        """Hand a set over."""
        self._bring(source, found)

    @rule(source=_REMOTE)
    def bring_nothing(self, source: str) -> None:
        """Hand an empty set over."""
        self._bring(source, {})

    @rule(source=_REMOTE, seconds=_SECONDS, lost=st.booleans())
    def look_twice(self, source: str, seconds: float, lost: bool) -> None:
        """Hand over two empty sets, over one connection or over two."""
        self._bring(source, {})
        self.wait(seconds)
        if lost:
            self.lose(source, returns=True)
        self._bring(source, {})

    def _bring(self, source: str, found: dict[str, Brought]) -> None:
        if source not in self.sources:
            return
        before, owned = self._held(), self.model.owned_by(source)
        items = {name: _item(name, each) for name, each in found.items()}
        again = self._run(self._followed(source).hand_over(SourceSet(items, "1")))
        counts = self.model.bring(source, _for_model(found), self.loop.now)
        assert counts or 0 < again <= 10
        # Only the owner takes a name back: by a set without it, or because it has expired.
        lost = before.keys() - self._held().keys()
        assert lost <= {name for name in owned if name not in found or found[name].fault == "expired"}
        assert counts or not lost

    @precondition(lambda self: "file:p.yaml" in self.sources)
    @rule(found=st.dictionaries(_NAMES, _VALUES, max_size=3))
    def write_files(self, found: dict[str, str]) -> None:
        """Apply a content of the policy files; an empty list is meant as one."""
        source = "file:p.yaml"
        policies = {
            name: OwnedManifest(manifest(name, kvLoadFailure=action(value)), source)
            for name, value in found.items()
        }
        self._run(self._followed(source).put(CheckedSet(policies)))
        brought = {name: Brought(value) for name, value in found.items()}
        assert self.model.bring(source, brought, self.loop.now, look_twice=False)

    @rule(source=_REMOTE)
    def bring_too_many(self, source: str) -> None:
        """Hand over more than the limit."""
        if source in self.sources:
            items = {f"p{number}": SourceItem({}) for number in range(MAX_ITEMS + 1)}
            self._run(self._followed(source).hand_over(SourceSet(items, "1")))
            self.model.too_many(source)

    @rule(source=_REMOTE, returns=st.booleans())
    def lose(self, source: str, returns: bool) -> None:
        """Lose the place of a source."""
        if source in self.sources:
            self._followed(source).away("lost")
            if returns:
                self._followed(source).connected()
            self.model.away(source)

    @rule(name=_NAMES, value=_VALUES)
    def set_by_hand(self, name: str, value: str) -> None:
        """Set a policy with agentctl, which is refused where a source owns the name."""
        try:
            self._run(self.store.apply(manifest(name, kvLoadFailure=action(value)), author="me"))
            allowed = True
        except OwnedError:
            allowed = False
        assert self.model.set_by_hand(name, value) == allowed

    @invariant()
    def what_is_in_force_is_what_the_documents_say(self) -> None:
        """Values and owners; and each source says how many of its policies hold, and which do not."""
        if self.database is None:
            return
        assert self._held() == self.model.held
        assert {each.owner for each in self.model.held.values()} <= {*self.sources, BY_HAND}
        for state in self.follower.states():
            assert state.accepted == len(self.model.owned_by(state.name)), state.name
            assert set(state.refused) == self.model.refused(state.name), state.name


TestSources = Sources.TestCase
TestSources.settings = settings(max_examples=examples(60, 3), stateful_step_count=30, deadline=None)
