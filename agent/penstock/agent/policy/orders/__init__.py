"""Operator orders with a time to live: quarantines, fault drills, ejections; and the kill switch with or without one."""

from __future__ import annotations

from penstock.agent.policy.orders.kill_switch import MAX_PAUSE, Pause, Pauses, with_front_ends
from penstock.agent.policy.orders.order_store import EJECTION_LEASE_SECONDS, OrderStore
from penstock.agent.policy.orders.timed_orders import (
    MAX_DELAY,
    MAX_DRILL,
    MAX_EJECTION,
    MAX_QUARANTINE,
    Ejection,
    FaultDrill,
    QuarantineOrder,
    quarantines_for,
    read_drill,
    read_ejection,
    read_quarantine,
)

__all__ = [
    "EJECTION_LEASE_SECONDS",
    "MAX_DELAY",
    "MAX_DRILL",
    "MAX_EJECTION",
    "MAX_PAUSE",
    "MAX_QUARANTINE",
    "Ejection",
    "FaultDrill",
    "OrderStore",
    "Pause",
    "Pauses",
    "QuarantineOrder",
    "quarantines_for",
    "read_drill",
    "read_ejection",
    "read_quarantine",
    "with_front_ends",
]
