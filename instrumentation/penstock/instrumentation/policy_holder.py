"""The policy in force, and the lock that makes every change of it fall between two steps.

    with runtime.policy.step():          # the scheduler, around schedule() and update_from_output()
        policy = runtime.policy.current  # take it once per decision

The scheduler holds the lock for the length of a step, so a swap waits for the end
of it; on an idle engine nobody holds it and a swap takes effect at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.instrumentation.policy_model import NO_POLICY

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock.instrumentation.policy_model import Policy


class PolicyHolder:
    """One immutable policy, swapped as a whole.

    Attributes:
        current: the policy in force; ``NO_POLICY`` for vLLM's own configuration.

    """

    __slots__ = ("_lock", "current")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.current: Policy = NO_POLICY

    def step(self) -> AbstractContextManager[bool]:
        """Return the lock to hold during a step; it may be entered again by the thread that holds it."""
        return self._lock

    def swap(self, policy: Policy, timeout: float) -> bool:
        """Put *policy* in force between two steps.

        Returns False, with nothing changed, if no step ended within *timeout* seconds.
        """
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            self.current = policy
        finally:
            self._lock.release()
        return True

    def reset(self) -> None:
        """Go back to vLLM's own configuration, with a new lock: for a child after a fork."""
        self._lock = threading.RLock()
        self.current = NO_POLICY
