"""Deadlines of encoder outputs (``deferral``): requests that the scheduler passes over until an item is there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.resilience import DeadlineLimits, Deadlines

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Policy


@dataclass(frozen=True, slots=True)
class EcWait:
    """A request that waits, and how many of its tokens were computed when it was last asked about."""

    request: Any
    computed: int


class EcDeadlines:
    """The waiting requests of one scheduler. The clocks run without a policy too, so that a new one applies to requests that already wait.

    Attributes:
        table: those that wait, by request; read at each poll.

    """

    def __init__(self) -> None:
        self._limits = DeadlineLimits()
        self._deadlines = Deadlines()
        self.table: dict[str, EcWait] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.table

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the limits of the policy that came into force."""
        self._limits = DeadlineLimits.from_policy(policy.deferral)

    def on_waiting(self, request: Any, computed: int) -> bool:
        """Record that a request waits; return False if that is known (a poll, of which every step has one)."""
        known = self.table.get(request.request_id)
        if known is not None and known.computed == computed:
            return False
        self.table[request.request_id] = EcWait(request, computed)
        self._deadlines.begin(request.request_id, time.monotonic_ns())
        return True

    def on_began(self, request_id: str) -> None:
        """Record that a transfer has begun that a request waits for; the first of several starts the clock."""
        self._deadlines.started(request_id, time.monotonic_ns())

    def on_ended(self, request_id: str) -> None:
        """Record that a request no longer waits."""
        if self.table.pop(request_id, None) is not None:
            self._deadlines.end(request_id)

    def waiting(self) -> list[EcWait]:
        """Return the requests that wait now."""
        return list(self.table.values())

    def take_overdue(self) -> list[EcWait]:
        """Return the requests that are over a deadline; each is returned once, and then waits no longer."""
        if not self.table:
            return []
        overdue = self._deadlines.pop_overdue(self._limits, time.monotonic_ns())
        return [self.table.pop(each.request_id) for each in overdue]
