"""Operator orders: quarantines and fault drills with a time to live, and the kill switch with or without one."""

from __future__ import annotations

from penstock.agent.policy.orders.kill_switch import MAX_PAUSE, Pause, Pauses, with_front_ends
from penstock.agent.policy.orders.order_store import (
    MAX_DELAY,
    MAX_DRILL,
    MAX_QUARANTINE,
    FaultDrill,
    OrderStore,
    QuarantineOrder,
    quarantines_for,
    read_drill,
    read_quarantine,
)

__all__ = [
    "MAX_DELAY",
    "MAX_DRILL",
    "MAX_PAUSE",
    "MAX_QUARANTINE",
    "FaultDrill",
    "OrderStore",
    "Pause",
    "Pauses",
    "QuarantineOrder",
    "quarantines_for",
    "read_drill",
    "read_quarantine",
    "with_front_ends",
]
