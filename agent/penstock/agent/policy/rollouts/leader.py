"""Leads the roll-outs of one store's policies: counts both groups, raises the percentage, aborts. One loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from penstock.agent.errors import ConflictError, ImpossibleError, NotFoundError, PenstockError
from penstock.agent.parsing import select
from penstock.agent.policy.rollouts import machine
from penstock.agent.policy.rollouts.comparison import EngineCounts, compare, share_of_errors
from penstock.agent.policy.rollouts.state import Rollouts, content_of, state_of, with_candidate, with_state
from penstock.agent.policy.store import IMPERATIVE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from penstock.agent.model import EngineKey
    from penstock.agent.parsing import Target
    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.policy.rollouts.comparison import Comparison
    from penstock.agent.policy.rollouts.state import RolloutPlan, RolloutState
    from penstock.agent.policy.store import Clock, StoredPolicy

    Counts = Mapping[EngineKey, EngineCounts]

AUTHOR = "rollout"
"""The author, in the audit log, of what no person ordered."""
LOOK_SECONDS = 2.0

_log = structlog.get_logger(__name__)

_ATTEMPTS = 5
# A roll-out begins after the one before, whose leader's clock may have been ahead: of two states the later one is newer.
_LATER_SECONDS = 0.001


class LedStore(Protocol):
    """Where the policies of a leader are: an agent's store, or the copy of a fleet's source."""

    def policies(self) -> Sequence[StoredPolicy]:
        """Return all policies, by name."""

    async def apply(self, manifest: Manifest, *, author: str, if_generation: int | None = None) -> object:
        """Replace a policy.

        Raises:
            ConflictError: the policy is not at *if_generation*.

        """


@dataclass(slots=True)
class _Test:
    """What the engines have counted in one sequential test.

    Attributes:
        key: of the test.
        began: of the step, on the monotonic clock, so that no jump of the time of day ends a hold.
        last: all counts at the last look.
        grown: of each engine since the test began; one that refuses the policy does not add.
        seen: the engines that were there at some time, so that one that ends counts on.

    """

    key: tuple[float, int]
    began: float
    last: Counts
    grown: dict[EngineKey, EngineCounts] = field(default_factory=dict)
    seen: dict[EngineKey, Target] = field(default_factory=dict)

    def count(self, now: Counts, engines: Iterable[Target], refusing: Collection[EngineKey]) -> None:
        """Add what was counted since the last look."""
        self.seen |= {target.key: target for target in engines}
        nothing = EngineCounts()
        for key in self.seen:
            more = now.get(key, nothing).since(self.last.get(key, nothing))
            if key not in refusing:
                self.grown[key] = self.grown.get(key, nothing).adding(more)
        self.last = now


class RolloutLeader:
    """Moves every live roll-out of *store*. Its state is in the policies, so another leader can go on.

    Args:
        store: of the policies.
        engines: returns the engines to compare.
        counts: returns what they have counted since ever.
        refusing: returns the engines that refuse what they were sent; what they count is not of the policy.
        clock: seconds since the epoch.
        monotonic: seconds since any point, which never jump.

    Attributes:
        aborts: roll-outs that it has aborted by itself.

    """

    def __init__(
        self,
        store: LedStore,
        engines: Callable[[], Iterable[Target]],
        counts: Callable[[], Counts],
        *,
        refusing: Callable[[], Collection[EngineKey]] = frozenset,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._store = store
        self._engines = engines
        self._counts = counts
        self._refusing = refusing
        self._clock = clock
        self._monotonic = monotonic
        self._tests: dict[str, _Test] = {}
        self._comparisons: dict[str, tuple[Comparison, ...]] = {}
        # The last error of each, which is logged once.
        self._troubles: dict[str, str] = {}
        self.aborts = 0

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
        kept: dict[str, Any]
        for kept in (self._tests, self._comparisons, self._troubles):
            for name in kept.keys() - names:
                del kept[name]
        for policy in policies:
            state = state_of(policy.manifest)
            if state is None or not state.live or state.phase == "paused" or self._why_not_led(policy):
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

    def _why_not_led(self, policy: StoredPolicy) -> str:
        """Return why the policy cannot be changed here; empty if it can."""
        if policy.owner != IMPERATIVE:
            return f"it has no leader: the policy belongs to {policy.owner}, change the percentage there"
        if policy.manifest.expired(datetime.fromtimestamp(self._clock(), UTC)):
            return "the policy has expired and is in force nowhere; give it a later time, or delete it"
        return ""

    async def _look_at(self, policy: StoredPolicy, state: RolloutState) -> None:
        manifest = policy.manifest
        strange = _strange(policy, state)
        if strange:
            await self._write(policy, machine.interrupt(state, strange), AUTHOR)
            return
        test = self._tests.get(manifest.name)
        if test is None or test.key != _key(state):
            await self._write(policy, machine.begin_again(state, self._clock()), AUTHOR)
            return
        refusing = self._refusing()
        test.count(self._counts(), self._engines(), refusing)
        comparisons = self._compare(manifest, state, test)
        self._comparisons[manifest.name] = comparisons
        after = machine.observe(
            state,
            self._clock(),
            comparisons,
            held=self._monotonic() - test.began,
            obstacle=self._refusals(manifest, refusing),
        )
        if after is not state:
            await self._write(policy, after, AUTHOR)
            self.aborts += after.phase == "aborted"

    def _compare(self, manifest: Manifest, state: RolloutState, test: _Test) -> tuple[Comparison, ...]:
        inside: list[EngineCounts] = []
        outside: list[EngineCounts] = []
        for target in select(test.seen.values(), manifest.spec.selector.selection):
            grown = test.grown.get(target.key)
            if grown is not None:
                (inside if manifest.in_rollout(target) else outside).append(grown)
        conditions = state.plan.abort_if
        error = share_of_errors(max(len(conditions), 1), state.tests)
        return tuple(compare(condition, inside, outside, error) for condition in conditions)

    def _refusals(self, manifest: Manifest, refusing: Collection[EngineKey]) -> str:
        count = sum(target.key in refusing and manifest.in_rollout(target) for target in self._engines())
        if not count:
            return ""
        engines = "1 engine refuses" if count == 1 else f"{count} engines refuse"
        return f"{engines} the policy, 'agentctl describe policy {manifest.name}' shows why"

    async def start(
        self, name: str, plan: RolloutPlan, *, author: str, reason: str, change: Manifest | None = None
    ) -> None:
        """Start to roll out policy *name*, or *change*, which takes its place.

        Raises:
            NotFoundError: no such policy.
            ImpossibleError: it is being rolled out, another one is in the same engines, it is in more engines than the
                first step, or it expires before the last one.
            ContractError: the plan is out of bounds.
            OwnedError: a file owns the policy.

        """
        await self._retry(lambda: self._start(name, plan, change, author=author, reason=reason))

    async def _start(
        self, name: str, plan: RolloutPlan, change: Manifest | None, *, author: str, reason: str
    ) -> None:
        policy = self._policy(name)
        state = state_of(policy.manifest)
        if state is not None and state.live:
            raise ImpossibleError(
                f"policy {name!r} is being rolled out ({state.phase}); 'agentctl rollout abort {name}' ends that"
            )
        if policy.owner == IMPERATIVE:
            self._check_alone(policy.manifest)
        self._check_expiry(policy.manifest, plan)
        if change is not None:
            policy = replace(policy, manifest=with_candidate(policy.manifest, change))
        by = author + (f": {reason}" if reason else "")
        started = machine.start_rollout(
            plan,
            author=by,
            content=content_of(policy.manifest),
            percent=policy.manifest.percent,
            now=self._clock() if state is None else max(self._clock(), state.started + _LATER_SECONDS),
            changes=policy.manifest.candidate is not None,
        )
        await self._write(policy, started, author)

    async def order(self, name: str, action: str, *, author: str, reason: str) -> None:
        """Pause, resume, promote or abort the roll-out of policy *name*.

        Raises:
            NotFoundError: no such policy, or it has no roll-out.
            ImpossibleError: the phase of the roll-out does not allow it.
            ContractError: there is no such action.

        """
        await self._retry(lambda: self._order(name, action, author=author, reason=reason))

    async def _order(self, name: str, action: str, *, author: str, reason: str) -> None:
        policy = self._policy(name)
        state = state_of(policy.manifest)
        if state is None:
            raise NotFoundError(
                f"policy {name!r} has no roll-out; 'agentctl rollout start {name}' begins one"
            )
        after = machine.command(state, action, author=author, reason=reason, now=self._clock())
        if action == "resume":
            if state.changes and policy.manifest.candidate is None:
                raise ImpossibleError(
                    f"the change was taken out of policy {name!r}; 'agentctl rollout abort {name}' ends its "
                    "roll-out and leaves the policy as it is"
                )
            # Of what is in the policy now, also by another's change.
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

    def summary(self) -> Rollouts:
        """Return the states of all roll-outs. Any thread."""
        return Rollouts({policy.manifest.name: state for policy, state, _ in self.rollouts()}, self.aborts)

    def obstacle(self, policy: StoredPolicy) -> str:
        """Return why a live roll-out of *policy* does not move, such as a full disk; empty for nothing."""
        state = state_of(policy.manifest)
        if state is None or not state.live:
            return ""
        return self._why_not_led(policy) or self._troubles.get(policy.manifest.name, "")

    def shares(self, manifest: Manifest) -> tuple[int, int]:
        """Return how many engines *manifest* selects here, and how many its selector matches."""
        matched = select(self._engines(), manifest.spec.selector.selection)
        return sum(manifest.in_rollout(target) for target in matched), len(matched)

    def _policy(self, name: str) -> StoredPolicy:
        for policy in self._store.policies():
            if policy.manifest.name == name:
                return policy
        raise NotFoundError(f"policy {name!r} does not exist; 'agentctl get policy' lists policies")

    def _check_alone(self, manifest: Manifest) -> None:
        """Check that no other roll-out is in the same engines: a comparison would measure both."""
        engines = list(self._engines())
        mine = {target.key for target in select(engines, manifest.spec.selector.selection)}
        for policy in self._store.policies():
            other, state = policy.manifest, state_of(policy.manifest)
            if other.name == manifest.name or state is None or not state.live or self._why_not_led(policy):
                continue
            theirs = {target.key for target in select(engines, other.spec.selector.selection)}
            if mine & theirs:
                raise ImpossibleError(
                    f"policy {other.name!r} is being rolled out ({state.phase}) in {len(mine & theirs)} of the same "
                    f"engines, and the comparison could not tell the two apart; wait for it, or end it: "
                    f"agentctl rollout abort {other.name}"
                )

    def _check_expiry(self, manifest: Manifest, plan: RolloutPlan) -> None:
        ends = manifest.spec.expires_at
        needed = plan.hold * (len(plan.steps) - 1)
        if ends is not None and ends.timestamp() < self._clock() + needed:
            raise ImpossibleError(
                f"the roll-out takes {needed:g} s and policy {manifest.name!r} expires before that; give a shorter "
                "--hold, fewer --steps, or a policy with a later expiry"
            )

    @staticmethod
    async def _retry(change: Callable[[], Awaitable[None]]) -> None:
        """Make a person's change again where a look came between, so that an abort is not refused for that."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await change()
            except ConflictError:
                continue
        return await change()

    async def _write(self, policy: StoredPolicy, state: RolloutState, author: str) -> None:
        """Store a state, unless the policy has changed meanwhile; a new test counts from here."""
        name = policy.manifest.name
        before = self._counts()
        state = replace(state, generation=policy.generation + 1)
        manifest = with_state(policy.manifest, state)
        await self._store.apply(manifest, author=author, if_generation=policy.generation)
        test = self._tests.get(name)
        if not state.live:
            self._tests.pop(name, None)
        elif test is None or test.key != _key(state):
            self._tests[name] = _Test(_key(state), self._monotonic(), before)
            self._comparisons.pop(name, None)
        log = _log.warning if state.phase in {"aborted", "undecided"} else _log.info
        log("roll-out", policy=name, state=state.phase, percent=state.percent, why=state.message)


def _key(state: RolloutState) -> tuple[float, int]:
    return state.started, state.tests


def _strange(policy: StoredPolicy, state: RolloutState) -> str:
    """Return what another writer has changed in the policy; empty for nothing."""
    manifest = policy.manifest
    if content_of(manifest) != state.content:
        return "the policy was changed; 'agentctl rollout resume' compares what it is now"
    if manifest.percent != state.percent:
        return f"its percentage was set to {manifest.percent}; 'agentctl rollout resume' goes on from the step below"
    if policy.generation != state.generation:
        return f"{policy.author} put this state back; 'agentctl rollout resume' goes on with it"
    return ""
