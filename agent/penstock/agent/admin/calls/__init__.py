"""The calls of the Admin service, a subject a module."""

from __future__ import annotations

from penstock.agent.admin.calls import (
    bills,
    bundles,
    deliveries,
    diagnoses,
    engines,
    events,
    orders,
    pairs,
    peers,
    policies,
    requests,
    rollouts,
    status,
    suspects,
    what_if,
)
from penstock.agent.admin.calls.status import write_backup

__all__ = [
    "bills",
    "bundles",
    "deliveries",
    "diagnoses",
    "engines",
    "events",
    "orders",
    "pairs",
    "peers",
    "policies",
    "requests",
    "rollouts",
    "status",
    "suspects",
    "what_if",
    "write_backup",
]
