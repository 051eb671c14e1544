"""The leader over a real store: it raises, aborts, stops at what others change, and goes on after a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.errors import ImpossibleError, NotFoundError, OwnedError, StateError
from penstock.agent.policy.manifest.manifest import check_manifest
from penstock.agent.policy.rollouts.comparison import EngineCounts
from penstock.agent.policy.rollouts.leader import AUTHOR, RolloutLeader
from penstock.agent.policy.rollouts.state import RolloutPlan, state_of, with_state
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.interface import OwnedManifest
from penstock.agent.policy.store.sqlite_store import PolicyStore

from tests.support.policy.policies import action, manifest, target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.agent.model import EngineKey
    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.rollouts.state import RolloutState
    from penstock.agent.policy.store.interface import Applied

ENGINES = [target(str(number), POD_NAME=f"decode-{number}") for number in range(60)]
PLAN = RolloutPlan((5, 25, 100), 600.0)


class _Pod:
    """A store, a leader and counts that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.now = 1_800_000_000.0
        self.database = PolicyDatabase.open(directory)
        self.jump = 0.0
        self.store = PolicyStore(self.database, clock=lambda: self.now + self.jump, steady=lambda: self.now)
        self.engines = ENGINES.copy()
        self.refusing: set[EngineKey] = set()
        self.counts: dict[EngineKey, EngineCounts] = {}
        self.restart()

    def restart(self) -> None:
        """Begin with another leader."""
        self.leader = RolloutLeader(
            self.store,
            lambda: list(self.engines),
            lambda: dict(self.counts),
            refusing=lambda: self.refusing,
            clock=lambda: self.now + self.jump,
            monotonic=lambda: self.now,
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
        policy = self.store.policies()[0]
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
    assert "another leads it now" in pod.state.message
    assert pod.state.began == pod.now
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


async def test_a_policy_that_engines_refuse_goes_no_further(pod: _Pod) -> None:
    """What does nothing is no worse; and it is not in force, so no step proves anything, even where none is needed."""
    await pod.store.apply(manifest("p", rollout={"percent": 0}), author="me")
    await pod.leader.start("p", replace(PLAN, proceed_undecided=True), author="me", reason="")
    pod.refusing = set(pod.selected)
    await pod.serve(0.01, 0.01, minutes=30)
    assert (pod.state.phase, pod.state.percent) == ("undecided", 5)
    assert f"{len(pod.refusing)} engines refuse the policy" in pod.state.message
    pod.refusing = set()
    await pod.serve(0.01, 0.01, minutes=2)
    assert pod.state.percent == 25


async def test_an_engine_that_ends_counts_on(pod: _Pod) -> None:
    """A policy that ends its engines does not take its evidence with them."""
    await pod.start()
    first = set(pod.selected)
    await pod.leader.look()
    for engine in ENGINES:
        pod.counts[engine.key] = EngineCounts(5_000, 2_500 if engine.key in first else 50)
    pod.now += 1
    failing = pod.leader.look
    pod.engines = [engine for engine in ENGINES if engine.key not in first]
    await failing()
    assert pod.state.phase == "aborted"


async def test_a_peer_that_is_forgotten_is_no_new_failure(pod: _Pod) -> None:
    """A total that falls without the requests has lost a part; the rest of it is from before the step."""
    for engine in ENGINES:
        pod.counts[engine.key] = EngineCounts(100_000, 5_000)
    await pod.start()
    first = set(pod.selected)
    for key in first:
        pod.counts[key] = EngineCounts(100_000, 4_000)
    await pod.serve(0.01, 0.01)
    assert pod.state.percent == 25


async def test_a_jump_of_the_clock_ends_no_hold(pod: _Pod) -> None:
    """Forwards it would pass a step that nobody watched; backwards it would wait for hours."""
    await pod.store.apply(manifest("p", rollout={"percent": 0}), author="me")
    await pod.leader.start("p", replace(PLAN, proceed_undecided=True), author="me", reason="")
    pod.jump = 86_400.0
    await pod.serve(0.01, 0.01, minutes=9)
    assert pod.state.percent == 5
    pod.jump = -86_400.0
    await pod.serve(0.01, 0.01, minutes=2)
    assert pod.state.percent == 25
    await pod.serve(0.01, 0.01, minutes=11)
    assert pod.state.phase == "promoted"


async def test_a_clock_that_is_set_back_stops_no_abort(pod: _Pod) -> None:
    """A break-glass policy of four hours has more than four hours left then."""
    ends = datetime.fromtimestamp(pod.now, UTC) + timedelta(hours=4)
    spec = {"priority": 900, "expiresAt": ends.isoformat(), "rollout": {"percent": 0}}
    await pod.store.apply(manifest("p", **spec), author="me")
    await pod.leader.start("p", PLAN, author="me", reason="")
    pod.jump = -3_600.0
    await pod.serve(0.5, 0.01, minutes=9)
    assert pod.state.phase == "aborted"


async def test_a_rollback_resumes_no_rollout(pod: _Pod) -> None:
    """It brings back an earlier state, and nobody has ordered that it goes on."""
    await pod.start()
    await pod.serve(0.5, 0.01, minutes=9)
    assert pod.state.phase == "aborted"
    await pod.store.rollback("p", author="eve")
    await pod.serve(0.01, 0.01, minutes=30)
    assert (pod.state.phase, pod.state.percent) == ("paused", 5)
    assert "eve put this state back; 'agentctl rollout resume' goes on with it" in pod.state.message
    await pod.leader.order("p", "resume", author="eve", reason="")
    await pod.serve(0.01, 0.01)
    assert pod.state.percent == 25


async def test_two_rollouts_are_not_in_the_same_engines(pod: _Pod) -> None:
    """The harm of one would be blamed on the other."""
    await pod.start()
    other = {"selector": {"matchLabels": {"POD_NAME": "decode-1"}}, "rollout": {"percent": 0}}
    await pod.store.apply(manifest("q", **other), author="me")
    with pytest.raises(
        ImpossibleError, match=r"policy 'p' is being rolled out \(progressing\) in 1 of the same"
    ):
        await pod.leader.start("q", PLAN, author="me", reason="")
    await pod.leader.order("p", "abort", author="me", reason="")
    await pod.leader.start("q", PLAN, author="me", reason="")
    elsewhere = {"selector": {"matchLabels": {"POD_NAME": "prefill-1"}}, "rollout": {"percent": 0}}
    await pod.store.apply(manifest("r", **elsewhere), author="me")
    await pod.leader.start("r", PLAN, author="me", reason="")


async def test_a_policy_that_expires_before_its_last_step_is_not_started(pod: _Pod) -> None:
    """It would never be in all engines."""
    ends = datetime.fromtimestamp(pod.now, UTC) + timedelta(minutes=15)
    spec = {"expiresAt": ends.isoformat(), "rollout": {"percent": 0}}
    await pod.store.apply(manifest("p", **spec), author="me")
    with pytest.raises(ImpossibleError, match="takes 1200 s and policy 'p' expires before that"):
        await pod.leader.start("p", PLAN, author="me", reason="")
    await pod.leader.start("p", replace(PLAN, hold=300.0), author="me", reason="")
    pod.now += 1_000
    await pod.leader.look()
    ((policy, state, _),) = pod.leader.rollouts()
    assert state.live
    assert "the policy has expired" in pod.leader.obstacle(policy)


async def test_an_abort_by_a_person_wins_over_a_look(pod: _Pod) -> None:
    """A look that writes at the same time does not refuse the order."""
    await pod.start()
    present = pod.store.policies()[0]
    apply = pod.store.apply
    raced: list[bool] = []

    async def race(changed: Manifest, **how: Any) -> Applied:
        if not raced:
            raced.append(True)
            await apply(
                with_state(present.manifest, pod.state), author="other", if_generation=present.generation
            )
            document = pod.store.policies()[0].manifest.document()
            document["metadata"]["annotations"]["note"] = "x"
            await apply(check_manifest(document), author="other")
        return await apply(changed, **how)

    pod.store.apply = race  # type: ignore[assignment,method-assign]
    await pod.leader.order("p", "abort", author="me", reason="INC-9")
    assert (pod.state.phase, pod.selected) == ("aborted", [])
    assert raced


async def _fill(store: PolicyStore) -> None:
    """Use what is left in the last pages."""
    for number in range(1_000):
        await store.apply(manifest(f"z-{number}", selector={"matchLabels": {"no": "engine"}}), author="me")


async def test_a_full_disk_is_said_and_does_not_stop_the_others(pod: _Pod) -> None:
    """The state stays what is stored; the abort is written once there is room."""
    await pod.start()
    await pod.serve(0.01, 0.01, minutes=1)
    pages = pod.database._connection.execute("PRAGMA page_count").fetchone()[0]
    pod.database._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateError):
        await _fill(pod.store)
    await pod.serve(0.5, 0.01, minutes=9)
    policy = next(policy for policy, *_ in pod.leader.rollouts() if policy.manifest.name == "p")
    state = state_of(policy.manifest)
    assert state is not None
    assert (state.phase, state.percent) == ("progressing", 5)
    assert "cannot be written (database or disk is full)" in pod.leader.obstacle(policy)
    pod.database._connection.execute("PRAGMA max_page_count = 1000000")
    await pod.serve(0.5, 0.01, minutes=1)
    (after,) = (state for policy, state, _ in pod.leader.rollouts() if policy.manifest.name == "p")
    assert (after.phase, after.percent) == ("aborted", 0)


@pytest.mark.parametrize("letter", ["ä", "語", "🔥", "\n", '"', "\x01"])
async def test_a_long_reason_in_any_script_is_no_obstacle(pod: _Pod, letter: str) -> None:
    """An annotation has at most 4,096 characters; an abort is not refused for its reason."""
    await pod.store.apply(manifest("p", rollout={"percent": 0}), author="me")
    steps = (*range(85, 100), 100)
    await pod.leader.start("p", replace(PLAN, steps=steps), author=letter * 1_000, reason=letter * 1_000)
    await pod.leader.order("p", "abort", author=letter * 1_000, reason=letter * 1_000)
    assert pod.state.phase == "aborted"


AUTO = {"action": "auto", "maxRecomputeTokens": 64}


async def _begin_change(pod: _Pod, plan: RolloutPlan = PLAN) -> None:
    """Put a policy in force, and start to roll out a change of it."""
    await pod.store.apply(manifest("p", kvLoadFailure=AUTO, priority=7), author="me")
    change = manifest("p", kvLoadFailure=action("fail"), priority=7)
    await pod.leader.start("p", plan, author="me", reason="", change=change)


def _having(pod: _Pod, wanted: str) -> list[EngineKey]:
    """Return the engines in which the action is as *wanted*."""
    (policy,) = pod.store.policies()
    versions = {engine.key: policy.manifest.version_for(engine) for engine in ENGINES}
    return [key for key, has in versions.items() if has and has.leaves["kvLoadFailure.action"] == wanted]


async def test_a_change_is_rolled_out_and_replaces_the_policy(pod: _Pod) -> None:
    """All engines have one of the two at any time; in the end the policy is the change, without a trace of the old."""
    await _begin_change(pod)
    first = _having(pod, "fail")
    assert 2 <= len(first) <= 8
    assert len(_having(pod, "auto")) == 60 - len(first)
    await pod.serve(0.01, 0.01)
    assert (pod.state.percent, len(_having(pod, "auto")) + len(_having(pod, "fail"))) == (25, 60)
    await pod.serve(0.01, 0.01)
    assert pod.state.phase == "promoted"
    spec = pod.store.policies()[0].manifest.document()["spec"]
    assert spec["kvLoadFailure"] == {"action": "fail"}
    assert "rollout" not in spec


async def test_a_bad_change_is_taken_back_and_the_policy_stays(pod: _Pod) -> None:
    """In all engines, as it was."""
    await _begin_change(pod)
    for _ in range(9):
        inside = set(_having(pod, "fail"))
        for engine in ENGINES:
            more = EngineCounts(2_000, 1_000 if engine.key in inside else 20)
            pod.counts[engine.key] = pod.counts.get(engine.key, EngineCounts()).adding(more)
        pod.now += 60
        await pod.leader.look()
    assert (pod.state.phase, pod.state.percent) == ("aborted", 0)
    assert len(_having(pod, "auto")) == 60
    spec = pod.store.policies()[0].manifest.document()["spec"]
    assert spec["kvLoadFailure"] == AUTO
    assert "rollout" not in spec
    again = manifest("p", kvLoadFailure=action("recompute"), priority=7)
    await pod.leader.start("p", PLAN, author="me", reason="", change=again)
    assert pod.state.percent == 5


async def test_a_change_that_somebody_takes_out_takes_nothing_with_it(pod: _Pod) -> None:
    """The roll-out pauses; its end leaves what they have put there."""
    await _begin_change(pod)
    document = pod.store.policies()[0].manifest.document()
    del document["spec"]["rollout"]
    await pod.store.apply(check_manifest(document), author="eve")
    await pod.leader.look()
    assert pod.state.phase == "paused"
    assert len(_having(pod, "auto")) == 60
    with pytest.raises(ImpossibleError, match="the change was taken out of policy 'p'"):
        await pod.leader.order("p", "resume", author="me", reason="")
    await pod.leader.order("p", "abort", author="me", reason="")
    assert len(_having(pod, "auto")) == 60


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (manifest("q", kvLoadFailure=action("fail"), priority=7), "metadata.name of the change differs"),
        (manifest("p", kvLoadFailure=action("fail")), "spec.priority of the change differs"),
        (
            manifest("p", kvLoadFailure=action("fail"), priority=7, selector={"matchLabels": {"a": "b"}}),
            "spec.selector of the change differs",
        ),
        (
            manifest("p", kvLoadFailure=action("fail"), priority=7, rollout={"percent": 5}),
            "spec.rollout of the change differs",
        ),
        (manifest("p", kvLoadFailure=AUTO, priority=7), "is already"),
    ],
)
async def test_a_change_of_more_than_a_candidate_has_is_refused(
    pod: _Pod, change: Manifest, text: str
) -> None:
    """What differs is named, and nothing is written."""
    await pod.store.apply(manifest("p", kvLoadFailure=AUTO, priority=7), author="me")
    with pytest.raises(ImpossibleError, match=text):
        await pod.leader.start("p", PLAN, author="me", reason="", change=change)
    assert pod.store.policies()[0].generation == 1


async def test_a_change_of_a_policy_that_is_not_everywhere_is_refused(pod: _Pod) -> None:
    """The candidate would come to engines that never had the policy."""
    await pod.store.apply(manifest("p", rollout={"percent": 5}), author="me")
    with pytest.raises(ImpossibleError, match="policy 'p' is in 5 % of its engines"):
        await pod.leader.start("p", PLAN, author="me", reason="", change=manifest("p", priority=5))
