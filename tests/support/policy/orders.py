"""Builders of orders for tests."""

from __future__ import annotations

from typing import Any

from penstock.agent.parsing.label_selector import Selection, parse_labels
from penstock.agent.policy.orders.timed_orders import FaultDrill, QuarantineOrder
from penstock.proto.v1.common_pb2 import CHANNEL_KV, FAILURE_MODE_HANDSHAKE

SECOND = 1_000_000_000


def select(labels: str = "") -> Selection:
    """Return a selection by labels; empty for all engines."""
    return Selection(parse_labels(labels))


def quarantine_order(
    order_id: str = "q1", peer: str = "p:5600", *, began: int = 0, seconds: int = 60, **fields: Any
) -> QuarantineOrder:
    """Return an order that cuts *peer* off, unless *fields* say otherwise; *began* in nanoseconds."""
    whole = {
        "selection": select(),
        "author": "me",
        "reason": "INC-1",
        "quarantined": True,
        "began_unix_nano": began,
        "ends_unix_nano": began + seconds * SECOND,
        **fields,
    }
    return QuarantineOrder(id=order_id, peer=peer, **whole)


def fault_drill(drill_id: str = "d1", *, began: int = 0, seconds: int = 60, **fields: Any) -> FaultDrill:
    """Return a rehearsal of failing handshakes, unless *fields* say otherwise; *began* in nanoseconds."""
    whole = {
        "selection": select(),
        "author": "me",
        "reason": "",
        "channel": CHANNEL_KV,
        "mode": FAILURE_MODE_HANDSHAKE,
        "rate": 0.2,
        "began_unix_nano": began,
        "ends_unix_nano": began + seconds * SECOND,
        **fields,
    }
    return FaultDrill(id=drill_id, **whole)
