"""The orders and policies of a moment of the past, as the audit log tells of them. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.policy.orders import quarantines_for, read_drill, read_quarantine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.agent.parsing import Target
    from penstock.agent.policy.orders import FaultDrill, QuarantineOrder
    from penstock.agent.policy.store import AuditEntry

CHANGES_READ = 4_096
"""Entries of the audit log, the newest."""

_OF_POLICIES = frozenset({"apply", "import", "release", "rollback", "delete"})
# What is written of an order of another version.
_UNREADABLE = (ValueError, KeyError, TypeError)


class PastOrders(NamedTuple):
    """What was ordered.

    Attributes:
        drills: that ran.
        quarantines: of which some may have ended, the oldest first.
        policy_changes: the newest change of each policy, nanoseconds.
        cut: there were more changes since than are read: orders may be missing.

    """

    drills: Sequence[FaultDrill]
    quarantines: Sequence[QuarantineOrder]
    policy_changes: Mapping[str, int]
    cut: bool

    def quarantines_of(self, target: Target, at: int) -> tuple[QuarantineOrder, ...]:
        """Return the orders about peers that were in force in an engine."""
        return quarantines_for(self.quarantines, target, at)


def past_orders(entries: Sequence[AuditEntry], at: int) -> PastOrders:
    """Return what *entries* of the audit log, the newest first, say of a moment, nanoseconds."""
    drills: dict[str, FaultDrill] = {}
    quarantines: list[QuarantineOrder] = []
    changes: dict[str, int] = {}
    for entry in reversed(entries):
        change = entry.change
        if entry.time_unix_nano > at:
            break
        if change.action in _OF_POLICIES:
            changes[change.name] = entry.time_unix_nano
        with suppress(*_UNREADABLE):
            if change.action in {"quarantine-add", "quarantine-lift"}:
                quarantines.append(read_quarantine(change.new_manifest))
            elif change.action == "drill-start":
                drill = read_drill(change.new_manifest)
                drills[drill.id] = drill
            elif change.action == "drill-stop":
                drills.pop(read_drill(change.old_manifest).id, None)
    return PastOrders(
        [drill for drill in drills.values() if drill.left_nano(at)],
        quarantines,
        changes,
        len(entries) >= CHANGES_READ and entries[-1].time_unix_nano > at,
    )
