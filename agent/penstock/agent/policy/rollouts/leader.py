"""Leads the roll-outs of one store's policies: counts both groups, raises the percentage, aborts. One loop."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import structlog
from penstock.agent.errors import ConflictError, ImpossibleError, NotFoundError, PenstockError
from penstock.agent.parsing import select
from penstock.agent.policy.rollouts import machine
from penstock.agent.policy.rollouts.comparison import compare, share_of_errors
from penstock.agent.policy.rollouts.measures import EngineCounts
from penstock.agent.policy.rollouts.state import content_of, state_of, with_state
from penstock.agent.policy.store import IMPERATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.rollouts.comparison import Comparison
    from penstock.agent.policy.rollouts.state import RolloutPlan, RolloutState
    from penstock.agent.policy.store import Clock, Store, StoredPolicy

    Counts = Mapping[EngineKey, EngineCounts]

AUTHOR = "rollout"
"""The author, in the audit log, of what no person ordered."""
LOOK_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class _Test(NamedTuple):
    """The counts of all engines when a sequential test began."""

    key: tuple[float, int]
    counts: Counts


class RolloutLeader:
    """Moves every live roll-out of *store*. Its state is in the policies, so another leader can go on.

    Args:
        store: of the policies.
        engines: returns the engines to compare.
        counts: returns what they have counted since ever.
        clock: seconds since the epoch.

    """

    def __init__(
        self,
        store: Store,
        engines: Callable[[], Iterable[Target]],
        counts: Callable[[], Counts],
        *,
        clock: Clock = time.time,
    ) -> None:
        self._store = store
        self._engines = engines
        self._counts = counts
        self._clock = clock
        self._tests: dict[str, _Test] = {}
        self._comparisons: dict[str, tuple[Comparison, ...]] = {}
        # The last error of each, which is logged once.
        self._troubles: dict[str, str] = {}

    async def keep_leading(self, seconds: float = LOOK_SECONDS) -> None:
        """Look at all roll-outs every so many seconds, for ever."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("the roll-outs could not be led; retrying")
            await asyncio.sleep(seconds)

    async def look(self) -> None:
        """Take each live roll-out as far as its evidence goes."""
        policies = self._store.policies()
        names = {policy.manifest.name for policy in policies}
        for kept in (self._tests, self._comparisons, self._troubles):
            for name in kept.keys() - names:
                del kept[name]
        for policy in policies:
            state = state_of(policy.manifest)
            if state is None or not state.live or state.phase == "paused" or not self._leads(policy):
                continue
            name, trouble = policy.manifest.name, ""
            try:
                await self._look_at(policy, state)
            except ConflictError:
                # Changed meanwhile; the next look sees it.
                continue
            except PenstockError as error:
                trouble = str(error)
            if trouble and self._troubles.get(name) != trouble:
                _log.warning("a roll-out cannot go on; retrying", policy=name, error=trouble)
            self._troubles[name] = trouble

    def _leads(self, policy: StoredPolicy) -> bool:
        """Return whether the policy can be changed here: it is not of a file, and has not expired."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        return policy.owner == IMPERATIVE and not policy.manifest.expired(now)

    async def _look_at(self, policy: StoredPolicy, state: RolloutState) -> None:
        manifest = policy.manifest
        strange = _strange(manifest, state)
        if strange:
            await self._write(policy, machine.interrupt(state, strange), AUTHOR)
            return
        test = self._tests.get(manifest.name)
        if test is None or test.key != _key(state):
            await self._write(policy, machine.begin_again(state), AUTHOR)
            return
        comparisons = self._compare(manifest, state, test.counts)
        self._comparisons[manifest.name] = comparisons
        after = machine.observe(state, self._clock(), comparisons)
        if after is not state:
            await self._write(policy, after, AUTHOR)

    def _compare(self, manifest: Manifest, state: RolloutState, before: Counts) -> tuple[Comparison, ...]:
        now = self._counts()
        nothing = EngineCounts()
        inside: list[EngineCounts] = []
        outside: list[EngineCounts] = []
        for target in select(self._engines(), manifest.spec.selector.selection):
            counted = now.get(target.key, nothing).since(before.get(target.key, nothing))
            (inside if manifest.selects(target) else outside).append(counted)
        conditions = state.plan.abort_if
        error = share_of_errors(max(len(conditions), 1), state.tests)
        return tuple(compare(condition, inside, outside, error) for condition in conditions)

    async def start(self, name: str, plan: RolloutPlan, *, author: str, reason: str) -> None:
        """Start to roll out policy *name*.

        Raises:
            NotFoundError: no such policy.
            ImpossibleError: it is being rolled out, or is in more engines than the first step.
            ContractError: the plan is out of bounds.
            OwnedError: a file owns the policy.

        """
        policy = self._policy(name)
        state = state_of(policy.manifest)
        if state is not None and state.live:
            raise ImpossibleError(
                f"policy {name!r} is being rolled out ({state.phase}); 'agentctl rollout abort {name}' ends that"
            )
        by = author + (f": {reason}" if reason else "")
        started = machine.start_rollout(
            plan,
            author=by,
            content=content_of(policy.manifest),
            percent=policy.manifest.percent,
            now=self._clock(),
        )
        await self._write(policy, started, author)

    async def order(self, name: str, action: str, *, author: str, reason: str) -> None:
        """Pause, resume, promote or abort the roll-out of policy *name*.

        Raises:
            NotFoundError: no such policy, or it has no roll-out.
            ImpossibleError: the phase of the roll-out does not allow it.
            ContractError: there is no such action.

        """
        policy = self._policy(name)
        state = state_of(policy.manifest)
        if state is None:
            raise NotFoundError(
                f"policy {name!r} has no roll-out; 'agentctl rollout start {name}' begins one"
            )
        after = machine.command(state, action, author=author, reason=reason, now=self._clock())
        if action == "resume":
            # Of what is in the policy now, whoever changed it.
            after = machine.adopt(after, content_of(policy.manifest), policy.manifest.percent)
        await self._write(policy, after, author)

    def rollouts(self) -> list[tuple[StoredPolicy, RolloutState, tuple[Comparison, ...]]]:
        """Return the policies that have a roll-out, with the comparisons of the last look."""
        found = ((policy, state_of(policy.manifest)) for policy in self._store.policies())
        return [
            (policy, state, self._comparisons.get(policy.manifest.name, ()))
            for policy, state in found
            if state is not None
        ]

    def shares(self, manifest: Manifest) -> tuple[int, int]:
        """Return how many engines *manifest* selects here, and how many its selector matches."""
        matched = select(self._engines(), manifest.spec.selector.selection)
        return sum(manifest.selects(target) for target in matched), len(matched)

    def _policy(self, name: str) -> StoredPolicy:
        for policy in self._store.policies():
            if policy.manifest.name == name:
                return policy
        raise NotFoundError(f"policy {name!r} does not exist; 'agentctl get policy' lists policies")

    async def _write(self, policy: StoredPolicy, state: RolloutState, author: str) -> None:
        """Store a state, unless the policy has changed meanwhile; a new test counts from here."""
        name = policy.manifest.name
        before = self._counts()
        manifest = with_state(policy.manifest, state)
        await self._store.apply(manifest, author=author, if_generation=policy.generation)
        if not state.live:
            self._tests.pop(name, None)
        elif self._tests.get(name, _Test((0.0, 0), {})).key != _key(state):
            self._tests[name] = _Test(_key(state), before)
            self._comparisons.pop(name, None)
        log = _log.warning if state.phase in {"aborted", "undecided"} else _log.info
        log("roll-out", policy=name, state=state.phase, percent=state.percent, why=state.message)


def _key(state: RolloutState) -> tuple[float, int]:
    return state.started, state.tests


def _strange(manifest: Manifest, state: RolloutState) -> str:
    """Return what somebody else has changed in the policy; empty for nothing."""
    if content_of(manifest) != state.content:
        return "the policy was changed; 'agentctl rollout resume' compares what it is now"
    if manifest.percent != state.percent:
        return f"its percentage was set to {manifest.percent}; 'agentctl rollout resume' goes on from the step below"
    return ""
