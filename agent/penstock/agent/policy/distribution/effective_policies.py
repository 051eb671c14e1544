"""Caches the schedule of each engine until the store changes; engines with the same policies share one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from penstock.agent.policy.distribution.push_encoding import schedule_of, time_left
from penstock.agent.policy.manifest import ScheduleStep, build_schedule, policies_selecting
from penstock.agent.policy.store import policy_sources
from penstock.proto.v1.policy_pb2 import Push

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from penstock.agent.model import EngineKey, PolicySource
    from penstock.agent.parsing import Target
    from penstock.agent.policy.store import Store, StoredPolicy


class PolicySchedule:
    """The schedule of the engines that the same policies select; valid until its first step ends.

    Attributes:
        hashes: of its steps, in order, from the current one.
        begins: start of each step but the first, seconds since the epoch.
        sources: the policies that each of its steps was merged from.

    """

    def __init__(self, steps: tuple[ScheduleStep, ...], policies: Mapping[str, StoredPolicy]) -> None:
        """Keep *steps*, which were merged from some of *policies*."""
        self._steps = steps
        self.hashes = tuple(step.merged.hash for step in steps)
        self.begins = tuple(step.begins.timestamp() for step in steps[1:])
        self.sources: tuple[tuple[PolicySource, ...], ...] = tuple(
            policy_sources(step.merged, policies) for step in steps
        )
        # With and without the names of policies.
        self._pushes: dict[bool, Push] = {}
        self._encoded: dict[bool, bytes] = {}

    def at(self, now: datetime) -> tuple[ScheduleStep, ...]:
        """Return its steps; the first begins *now*."""
        return (ScheduleStep(now, self._steps[0].merged), *self._steps[1:])

    def holds(self, now: datetime) -> bool:
        """Return whether its first step is in force at *now*."""
        return self._steps[0].begins <= now and (len(self._steps) == 1 or now < self._steps[1].begins)

    def encoded(self, now: datetime, *, named: bool = False) -> bytes:
        """Return a serialized ``Push`` of only the schedule, for a push sent *now*; *named*: with the names of policies.

        Concatenated serialized messages parse as one message with all their fields.
        """
        timed = len(self._steps) > 1
        push = self._pushes.get(named)
        if push is None:
            push = Push(schedule=schedule_of(self._steps, self.sources if named else ()))
            self._pushes[named] = push
            self._encoded[named] = b"" if timed else push.SerializeToString()
        if not timed:
            return self._encoded[named]
        # Only this field depends on the time.
        push.schedule[0].valid_for.FromTimedelta(time_left(now, self._steps[1].begins))
        return push.SerializeToString()


class EffectivePolicies:
    """The schedules of all engines under one store, until it changes or the time of day is set. One loop."""

    def __init__(self, store: Store) -> None:
        """Read *store*."""
        self._store = store
        # The schedules are of this generation, and of a clock that was set so often.
        self._stamp = (-1, 0)
        self._policies: dict[str, StoredPolicy] = {}
        self._of_engine: dict[EngineKey, tuple[Target, PolicySchedule]] = {}
        # By the texts of the selecting policies; unused ones are dropped.
        self._shared: WeakValueDictionary[tuple[str, ...], PolicySchedule] = WeakValueDictionary()

    def of(self, target: Target, now: datetime) -> PolicySchedule:
        """Return the schedule of *target*; its first step is in force at *now*."""
        stamp = self._store.generation, self._store.clock_steps()
        if stamp != self._stamp:
            self._stamp = stamp
            self._policies = {policy.manifest.name: policy for policy in self._store.policies()}
            self._of_engine.clear()
            self._shared.clear()
        known = self._of_engine.get(target.key)
        if known is not None and known[0] == target and known[1].holds(now):
            return known[1]
        found = self._find(target, now)
        self._of_engine[target.key] = target, found
        return found

    def forget(self, key: EngineKey) -> None:
        """Forget an engine."""
        self._of_engine.pop(key, None)

    def _find(self, target: Target, now: datetime) -> PolicySchedule:
        selected = policies_selecting((policy.manifest for policy in self._policies.values()), target)
        texts = tuple(policy.canonical for policy in selected)
        found = self._shared.get(texts)
        if found is None or not found.holds(now):
            found = self._shared[texts] = PolicySchedule(
                build_schedule(selected, now, self._store.end_of), self._policies
            )
        return found
