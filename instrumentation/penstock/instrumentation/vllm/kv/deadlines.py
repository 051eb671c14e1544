"""Deadlines of remote loads (``deferral``): overdue requests are named to the workers, which end their loads.

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
    """The requests of one scheduler that wait for remote KV, and those that are over a deadline.

    All but :meth:`on_policy_change` on the scheduler's thread. The clocks run without a policy too, so that a new one applies to
    requests that already wait. It is true while a request waits.
    """

    def __init__(self, orders: StepMetadata) -> None:
        """Name overdue requests to the workers by *orders*."""
        self._orders = orders
        self._limits = DeadlineLimits()
        self._deadlines = Deadlines()
        self._overdue: dict[str, Overdue] = {}

    def __bool__(self) -> bool:
        return len(self._deadlines) > 0

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the limits of the policy that came into force."""
        self._limits = DeadlineLimits.from_policy(policy.deferral)

    def on_waiting(self, request_id: str) -> None:
        """Start the clock of a request that waits for its transfer to begin."""
        self._deadlines.begin(request_id, time.monotonic_ns())

    def on_began(self, request_id: str) -> None:
        """Start the transfer's clock."""
        self._deadlines.started(request_id, time.monotonic_ns())

    def on_ended(self, request_id: str) -> None:
        """Forget a request that no longer waits."""
        self._deadlines.end(request_id)
        if self._overdue.pop(request_id, None) is not None:
            self._orders.cancel = self._named()

    def check(self) -> None:
        """Name the requests that are over a deadline now to the workers; once in each step."""
        found = self._deadlines.pop_overdue(self._limits, time.monotonic_ns())
        if found:
            self._overdue.update({each.request_id: each for each in found})
            self._orders.cancel = self._named()

    def overdue(self, request_id: str) -> Overdue | None:
        """Return by how much a request is over its deadline, or None if it is not."""
        return self._overdue.get(request_id)

    def _named(self) -> dict[str, WaitKind]:
        return {request_id: each.wait for request_id, each in self._overdue.items()}
