"""The policy in force, the schedule it comes from, and the lock that puts every change between two steps.

    with runtime.policy.step():          # the scheduler, around schedule() and update_from_output()
        policy = runtime.policy.current  # read once per decision

The scheduler holds the lock for the length of a step, so a swap waits for the end of
it; on an idle engine the lock is free and a swap takes effect at once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.instrumentation.core import guard
from penstock.instrumentation.orders import NO_ORDERS
from penstock.rules import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from penstock.instrumentation.orders import Drill, Orders
    from penstock.rules import Policy

    Subscriber = Callable[[Policy, Orders], None]


def fits_always(_drill: Drill) -> str:
    """Refuse no drill."""
    return ""


class ActivePolicy:
    """One immutable policy and the orders beside it, swapped as a whole.

    Attributes:
        current: the policy in force; ``NO_POLICY`` for vLLM's own configuration.
        orders: the operators' orders in force.
        unfit_drill: returns why this engine cannot rehearse a drill, empty if it can; from any thread.

    """

    __slots__ = ("_lock", "_subscribers", "current", "orders", "unfit_drill")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._subscribers: list[Subscriber] = []
        self.current: Policy = NO_POLICY
        self.orders: Orders = NO_ORDERS
        self.unfit_drill: Callable[[Drill], str] = fits_always

    def step(self) -> AbstractContextManager[bool]:
        """Return the lock to hold during a step; the thread that holds it may enter it again."""
        return self._lock

    def subscribe(self, on_policy_change: Subscriber) -> None:
        """Call *on_policy_change* now and after each swap, before the next step, under the lock; it must not wait."""
        with self._lock:
            self._subscribers.append(on_policy_change)
            self._notify(on_policy_change)

    def unsubscribe(self, on_policy_change: Subscriber) -> None:
        """Stop calling *on_policy_change*."""
        with self._lock:
            self._subscribers = [each for each in self._subscribers if each != on_policy_change]

    def swap(self, policy: Policy, timeout: float, orders: Orders | None = None) -> bool:
        """Put *policy* in force between two steps, and *orders* unless they are None.

        Returns False, with nothing changed, if no step ended within *timeout* seconds.
        """
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            self.current = policy
            if orders is not None:
                self.orders = orders
            for subscriber in self._subscribers:
                self._notify(subscriber)
        finally:
            self._lock.release()
        return True

    def reset(self) -> None:
        """Go back to vLLM's own configuration, with a new lock: for a child after a fork."""
        self._lock = threading.RLock()
        self._subscribers = []
        self.current = NO_POLICY
        self.orders = NO_ORDERS
        self.unfit_drill = fits_always

    def _notify(self, subscriber: Subscriber) -> None:
        with guard("policy.follower"):
            subscriber(self.current, self.orders)


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A policy and the seconds for which it holds; None for good (the last entry only)."""

    policy: Policy
    valid_for: float | None = None


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """An entry on the monotonic clock: *ends* in seconds, None for the last."""

    policy: Policy
    ends: float | None


class PolicySchedule:
    """Policies one after the other on the monotonic clock, from their receipt on. Immutable; needs no agent."""

    def __init__(self, entries: Sequence[ScheduleEntry], now: float) -> None:
        """Begin *entries* at *now*; no entries means vLLM's own configuration for good."""
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
