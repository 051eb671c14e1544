"""Operator orders: quarantines and fault drills with a time to live, and the kill switch."""

from __future__ import annotations

from penstock.agent.policy.orders.kill_switch import Pauses, with_front_ends
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.orders.orders import (
    MAX_DELAY,
    MAX_DRILL,
    MAX_QUARANTINE,
    FaultDrill,
    QuarantineOrder,
)

__all__ = [
    "MAX_DELAY",
    "MAX_DRILL",
    "MAX_QUARANTINE",
    "FaultDrill",
    "OrderStore",
    "Pauses",
    "QuarantineOrder",
    "with_front_ends",
]
