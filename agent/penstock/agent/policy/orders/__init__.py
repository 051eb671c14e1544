"""Operator orders: quarantines and fault drills with a time to live, and the kill switch with or without one."""

from __future__ import annotations

from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.orders.orders import (
    MAX_DELAY,
    MAX_DRILL,
    MAX_QUARANTINE,
    FaultDrill,
    QuarantineOrder,
    quarantines_for,
    read_drill,
    read_quarantine,
)
from penstock.agent.policy.orders.pause import MAX_PAUSE, Pause, with_front_ends

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
