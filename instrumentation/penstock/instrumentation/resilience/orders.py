"""Operators' orders beside policies: quarantine orders and fault drills, which the feed pushes with every policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.instrumentation.resilience.fault_drills import Drill
    from penstock.rules import QuarantineOrder


@dataclass(frozen=True, slots=True)
class Orders:
    """The full state of the feed; the times in it count from *received_ns* (monotonic nanoseconds)."""

    quarantines: tuple[QuarantineOrder, ...] = ()
    drills: tuple[Drill, ...] = ()
    received_ns: int = 0

    def drills_at(self, now_ns: int) -> tuple[Drill, ...]:
        """Return the drills that still run at *now_ns* (monotonic), each with its remaining time."""
        passed = now_ns - self.received_ns
        return tuple(
            replace(drill, valid_for_ns=drill.valid_for_ns - passed)
            for drill in self.drills
            if drill.valid_for_ns > passed
        )


NO_ORDERS: Final = Orders()
