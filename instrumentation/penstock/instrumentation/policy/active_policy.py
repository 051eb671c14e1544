"""The policy in force, and the lock that makes every change of it fall between two steps.

    with runtime.policy.step():          # the scheduler, around schedule() and update_from_output()
        policy = runtime.policy.current  # take it once per decision

The scheduler holds the lock for the length of a step, so a swap waits for the end
of it; on an idle engine nobody holds it and a swap takes effect at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.instrumentation.core import guard
from penstock.instrumentation.resilience import NO_ORDERS, NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from penstock.instrumentation.resilience import Orders, Policy

    Follower = Callable[[Policy, Orders], None]


class ActivePolicy:
    """One immutable policy and the directives beside it, swapped as a whole.

    Attributes:
        current: the policy in force; ``NO_POLICY`` for vLLM's own configuration.
        directives: the operators' orders in force.

    """

    __slots__ = ("_followers", "_lock", "current", "directives")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._followers: list[Follower] = []
        self.current: Policy = NO_POLICY
        self.directives: Orders = NO_ORDERS

    def step(self) -> AbstractContextManager[bool]:
        """Return the lock to hold during a step; it may be entered again by the thread that holds it."""
        return self._lock

    def follow(self, follower: Follower) -> None:
        """Call *follower* now and after each swap, before the next step; it must only note what it is told."""
        with self._lock:
            self._followers.append(follower)
            self._tell(follower)

    def unfollow(self, follower: Follower) -> None:
        """Do not call *follower* any more."""
        with self._lock:
            self._followers = [each for each in self._followers if each != follower]

    def swap(self, policy: Policy, timeout: float, directives: Orders | None = None) -> bool:
        """Put *policy* in force between two steps; directives stay as they are unless they are given.

        Returns False, with nothing changed, if no step ended within *timeout* seconds.
        """
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            self.current = policy
            if directives is not None:
                self.directives = directives
            for follower in self._followers:
                self._tell(follower)
        finally:
            self._lock.release()
        return True

    def reset(self) -> None:
        """Go back to vLLM's own configuration, with a new lock: for a child after a fork."""
        self._lock = threading.RLock()
        self._followers = []
        self.current = NO_POLICY
        self.directives = NO_ORDERS

    def _tell(self, follower: Follower) -> None:
        with guard("policy.follower"):
            follower(self.current, self.directives)
