"""The calls of the Admin service, a subject a module."""

from __future__ import annotations

from penstock.agent.admin.calls import (
    backup,
    bills,
    bundles,
    diagnoses,
    drills,
    engines,
    events,
    forget,
    holders,
    pairs,
    peers,
    policies,
    policy_bundles,
    policy_rollouts,
    quarantines,
    requests,
    rollouts,
    stacks,
    status,
    suspects,
    what_if,
)
from penstock.agent.admin.calls.backup import write_backup

__all__ = [
    "backup",
    "bills",
    "bundles",
    "diagnoses",
    "drills",
    "engines",
    "events",
    "forget",
    "holders",
    "pairs",
    "peers",
    "policies",
    "policy_bundles",
    "policy_rollouts",
    "quarantines",
    "requests",
    "rollouts",
    "stacks",
    "status",
    "suspects",
    "what_if",
    "write_backup",
]
