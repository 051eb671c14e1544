"""A pushed schedule as it runs down on the monotonic clock, also with the agent dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.instrumentation.resilience import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.resilience import Policy


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy and for how many seconds it holds; None for good (the last entry only)."""

    policy: Policy
    valid_for: float | None = None


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One entry on the monotonic clock; *ends* is None for the last."""

    policy: Policy
    ends: float | None


class PolicySchedule:
    """Policies one after the other, from the moment they were received. Immutable."""

    def __init__(self, entries: Sequence[Entry], now: float) -> None:
        """Anchor *entries* at *now*; no entries means vLLM's own configuration for good."""
        steps: list[ScheduleStep] = []
        end: float | None = now
        for entry in entries:
            end = None if entry.valid_for is None or end is None else end + entry.valid_for
            steps.append(ScheduleStep(entry.policy, end))
        self._steps = tuple(steps) or (ScheduleStep(NO_POLICY, None),)

    def at(self, now: float) -> ScheduleStep:
        """Return the step that holds at *now*."""
        for step in self._steps:
            if step.ends is None or now < step.ends:
                return step
        return ScheduleStep(NO_POLICY, None)
