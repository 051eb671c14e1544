"""Deadlines of remote loads: a request that waits for longer than ``deferral`` allows is named to the workers, which end its load.

Nothing is freed here. The worker ends the transfer where it polls it, vLLM's own failure path runs, and the failure is then
decided about like any other (``deferral.onTimeout``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.instrumentation.resilience import DeadlineLimits, Deadlines

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Overdue, Policy, WaitKind
    from penstock.instrumentation.vllm.messages import StepMetadata


class KvDeadlines:
    """Who waits for remote KV in one scheduler, and who has waited for too long.

    All but :meth:`follow` on the scheduler's thread. The clocks run without a policy as well, so that one applies to requests
    that already wait.
    """

    def __init__(self, orders: StepMetadata) -> None:
        """Tell the workers by *orders*."""
        self._orders = orders
        self._limits = DeadlineLimits()
        self._deadlines = Deadlines()
        self._overdue: dict[str, Overdue] = {}

    def follow(self, policy: Policy) -> None:
        """Take in the limits of the policy that came into force."""
        self._limits = DeadlineLimits.from_policy(policy.deferral)

    def parked(self, request_id: str) -> None:
        """Note that a request waits for its transfer to begin."""
        self._deadlines.begin(request_id, time.monotonic_ns())

    def began(self, request_id: str) -> None:
        """Note that the transfer has begun."""
        self._deadlines.started(request_id, time.monotonic_ns())

    def ended(self, request_id: str) -> None:
        """Note that a request no longer waits."""
        self._deadlines.end(request_id)
        if self._overdue.pop(request_id, None) is not None:
            self._orders.cancel = self._named()

    def check(self) -> None:
        """Name the requests that are over a deadline now to the workers."""
        if not len(self._deadlines):
            return
        found = self._deadlines.pop_overdue(self._limits, time.monotonic_ns())
        if found:
            self._overdue.update({each.request_id: each for each in found})
            self._orders.cancel = self._named()

    def overdue(self, request_id: str) -> Overdue | None:
        """Return by how much a request is over its deadline, or None if it is not."""
        return self._overdue.get(request_id)

    def _named(self) -> dict[str, WaitKind]:
        return {request_id: each.wait for request_id, each in self._overdue.items()}
