"""The leader over a real store: it raises, aborts, stops at what others change, and goes on after a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from penstock.agent.errors import ImpossibleError, NotFoundError, OwnedError
from penstock.agent.policy.manifest.manifest import check_manifest
from penstock.agent.policy.rollouts.leader import AUTHOR, RolloutLeader
from penstock.agent.policy.rollouts.measures import EngineCounts
from penstock.agent.policy.rollouts.state import RolloutPlan, state_of
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.interface import OwnedManifest
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.policies import action, manifest, target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.agent.model import EngineKey
    from penstock.agent.policy.rollouts.state import RolloutState

ENGINES = [target(str(number), POD_NAME=f"decode-{number}") for number in range(60)]
PLAN = RolloutPlan((5, 25, 100), 600.0)


class _Pod:
    """A store, a leader and counts that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.now = 1_800_000_000.0
        self.database = PolicyDatabase.open(directory)
        self.store = PolicyStore(self.database, clock=lambda: self.now)
        self.counts: dict[EngineKey, EngineCounts] = {}
        self.restart()

    def restart(self) -> None:
        """Begin with another leader."""
        self.leader = RolloutLeader(
            self.store, lambda: ENGINES, lambda: dict(self.counts), clock=lambda: self.now
        )

    @property
    def state(self) -> RolloutState:
        """The state in the store."""
        state = state_of(self.store.policies()[0].manifest)
        assert state is not None
        return state

    @property
    def selected(self) -> list[EngineKey]:
        """The engines that have the policy."""
        (policy,) = self.store.policies()
        return [engine.key for engine in ENGINES if policy.manifest.selects(engine)]

    async def start(self) -> None:
        """Apply the policy for no engine, and start its roll-out."""
        await self.store.apply(manifest("p", rollout={"percent": 0}), author="me")
        await self.leader.start("p", PLAN, author="me", reason="INC-1")

    async def serve(self, bad: float, good: float, *, minutes: int = 11) -> None:
        """Let all engines serve, some requests of which fail; look each minute."""
        for _ in range(minutes):
            self.now += 60
            inside = set(self.selected)
            for engine in ENGINES:
                before = self.counts.get(engine.key, EngineCounts())
                share = bad if engine.key in inside else good
                self.counts[engine.key] = EngineCounts(
                    before.requests + 2_000, before.failed + int(2_000 * share), 0.0, 0
                )
            await self.leader.look()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[_Pod]:
    """Return a pod with 60 engines."""
    made = _Pod(tmp_path)
    yield made
    made.database.close()


async def test_a_harmless_policy_reaches_all_engines(pod: _Pod) -> None:
    """Step by step, each one an entry of the audit log with its reason."""
    await pod.start()
    first = pod.selected
    assert 2 <= len(first) <= 8
    await pod.serve(0.01, 0.01)
    assert pod.state.percent == 25
    assert set(first) < set(pod.selected)
    await pod.serve(0.01, 0.01)
    assert (pod.state.phase, len(pod.selected)) == ("promoted", 60)
    audit = await pod.store.changes("p", 10)
    assert [(entry.change.author, entry.change.reason) for entry in reversed(audit)] == [
        ("me", ""),
        ("me", "at 5 %: started by me: INC-1"),
        (AUTHOR, "at 25 %: 5 % held for 10 min, no worse"),
        (AUTHOR, "promoted to all engines: 25 % held for 10 min, no worse"),
    ]


async def test_a_bad_policy_aborts_itself(pod: _Pod) -> None:
    """At 5 percent, before its hold is over; no other engine ever had it."""
    await pod.start()
    first = set(pod.selected)
    had = set(first)
    pod.store.subscribe(lambda: had.update(pod.selected))
    await pod.serve(0.5, 0.01, minutes=9)
    assert (pod.state.phase, pod.state.percent, pod.selected) == ("aborted", 0, [])
    assert pod.state.message.startswith("aborted at 5 %: failed>2x: 50 % of requests failed in ")
    assert had == first


async def test_a_restart_goes_on(pod: _Pod) -> None:
    """The step and its hold stay; the counts begin again, in another test."""
    await pod.start()
    await pod.serve(0.01, 0.01, minutes=5)
    pod.restart()
    await pod.serve(0.5, 0.01, minutes=1)
    assert (pod.state.phase, pod.state.tests, pod.state.percent) == ("progressing", 2, 5)
    assert "the agent has restarted" in pod.state.message
    await pod.serve(0.5, 0.01, minutes=2)
    assert pod.state.phase == "aborted"


async def test_a_policy_that_somebody_changes_pauses(pod: _Pod) -> None:
    """What was compared is not what is there now; resume takes it as it is."""
    await pod.start()
    document = pod.store.policies()[0].manifest.document()
    document["spec"]["kvLoadFailure"] = action("fail")
    await pod.store.apply(check_manifest(document), author="eve")
    await pod.serve(0.01, 0.01, minutes=1)
    assert pod.state.phase == "paused"
    assert "the policy was changed" in pod.state.message
    await pod.leader.order("p", "resume", author="eve", reason="")
    await pod.serve(0.01, 0.01)
    assert (pod.state.phase, pod.state.percent) == ("progressing", 25)


async def test_a_percentage_that_somebody_sets_pauses(pod: _Pod) -> None:
    """It is not raised again behind that person's back."""
    await pod.start()
    document = pod.store.policies()[0].manifest.document()
    document["spec"]["rollout"] = {"percent": 0}
    await pod.store.apply(check_manifest(document), author="eve")
    await pod.serve(0.01, 0.01)
    assert (pod.state.phase, pod.state.percent) == ("paused", 5)
    await pod.leader.order("p", "resume", author="eve", reason="")
    assert (pod.state.phase, len(pod.selected) > 0) == ("progressing", True)


async def test_a_policy_of_a_file_or_one_that_has_expired_is_left_alone(pod: _Pod) -> None:
    """Neither can be changed here; the first one has its annotation from an export."""
    await pod.start()
    exported = pod.store.policies()[0].manifest
    await pod.store.replace_files([OwnedManifest(exported, "file:p.yaml")])
    pod.restart()
    await pod.serve(0.5, 0.01)
    assert pod.store.policies()[0].manifest == exported
    await pod.store.release_files()
    document = exported.document()
    end = datetime.fromtimestamp(pod.now, UTC) + timedelta(minutes=1)
    document["spec"]["expiresAt"] = end.isoformat()
    await pod.store.apply(check_manifest(document), author="me")
    await pod.serve(0.5, 0.01, minutes=3)
    assert pod.state.phase == "progressing"


async def test_a_policy_that_is_replaced_has_no_rollout(pod: _Pod) -> None:
    """A file without the annotation ends it; its percentage counts."""
    await pod.start()
    await pod.store.apply(manifest("p", rollout={"percent": 50}), author="eve")
    await pod.serve(0.5, 0.01)
    assert pod.leader.rollouts() == []
    assert pod.store.policies()[0].manifest.percent == 50


async def test_what_cannot_be_started(pod: _Pod) -> None:
    """With what to do."""
    with pytest.raises(NotFoundError, match="does not exist"):
        await pod.leader.start("p", PLAN, author="me", reason="")
    await pod.store.apply(manifest("p"), author="me")
    with pytest.raises(ImpossibleError, match="would take it away"):
        await pod.leader.start("p", PLAN, author="me", reason="")
    with pytest.raises(NotFoundError, match="has no roll-out"):
        await pod.leader.order("p", "abort", author="me", reason="")
    await pod.store.apply(manifest("p", rollout={"percent": 0}), author="me")
    await pod.leader.start("p", PLAN, author="me", reason="")
    with pytest.raises(ImpossibleError, match="is being rolled out"):
        await pod.leader.start("p", PLAN, author="me", reason="")
    await pod.store.replace_files([OwnedManifest(manifest("q", rollout={"percent": 0}), "file:q.yaml")])
    with pytest.raises(OwnedError):
        await pod.leader.start("q", PLAN, author="me", reason="")
