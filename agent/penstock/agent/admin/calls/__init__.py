"""The calls of the Admin service, a subject a module."""

from __future__ import annotations

from penstock.agent.admin.calls import (
    backup,
    drills,
    engines,
    events,
    forget,
    holders,
    policies,
    policy_bundles,
    policy_rollouts,
    quarantines,
    requests,
    rollouts,
    status,
    suspects,
)
from penstock.agent.admin.calls.backup import write_backup

__all__ = [
    "backup",
    "drills",
    "engines",
    "events",
    "forget",
    "holders",
    "policies",
    "policy_bundles",
    "policy_rollouts",
    "quarantines",
    "requests",
    "rollouts",
    "status",
    "suspects",
    "write_backup",
]
