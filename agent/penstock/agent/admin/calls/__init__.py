"""The calls of the Admin service, a subject a module."""

from __future__ import annotations

from penstock.agent.admin.calls import (
    backup,
    drills,
    engines,
    events,
    forget,
    policies,
    policy_bundles,
    policy_rollouts,
    quarantines,
    requests,
    rollouts,
    stacks,
    status,
)
from penstock.agent.admin.calls.backup import write_backup

__all__ = [
    "backup",
    "drills",
    "engines",
    "events",
    "forget",
    "policies",
    "policy_bundles",
    "policy_rollouts",
    "quarantines",
    "requests",
    "rollouts",
    "stacks",
    "status",
    "write_backup",
]
