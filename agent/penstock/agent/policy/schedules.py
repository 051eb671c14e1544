"""What each engine is to have: worked out once for each change of the store, not at each look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent.policy.merge import Step, effective

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.agent.model import EngineKey
    from penstock.agent.policy.store import Store
    from penstock.agent.selector import Target


@dataclass(frozen=True, slots=True)
class _Known:
    """Steps that hold from when they were worked out until the first of them ends."""

    target: Target
    steps: tuple[Step, ...]

    def holds(self, target: Target, now: datetime) -> bool:
        begins = self.steps[0].begins
        ends = self.steps[1].begins if len(self.steps) > 1 else None
        return self.target == target and begins <= now and (ends is None or now < ends)


class Schedules:
    """The schedules of all engines under one store. One loop."""

    def __init__(self, store: Store) -> None:
        """Read *store*."""
        self._store = store
        self._generation = -1
        self._of_engine: dict[EngineKey, _Known] = {}

    def of(self, target: Target, now: datetime) -> tuple[Step, ...]:
        """Return the schedule of *target*, the first step of which begins *now*."""
        if self._generation != self._store.generation:
            self._generation = self._store.generation
            self._of_engine.clear()
        known = self._of_engine.get(target.key)
        if known is None or not known.holds(target, now):
            manifests = (policy.manifest for policy in self._store.policies())
            known = self._of_engine[target.key] = _Known(target, effective(manifests, target, now))
        return (Step(now, known.steps[0].merged), *known.steps[1:])

    def forget(self, key: EngineKey) -> None:
        """Forget an engine."""
        self._of_engine.pop(key, None)
