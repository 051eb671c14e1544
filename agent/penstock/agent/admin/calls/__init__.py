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
    quarantines,
    requests,
    rollouts,
    status,
)
from penstock.agent.admin.calls.backup import back_up

__all__ = [
    "back_up",
    "backup",
    "drills",
    "engines",
    "events",
    "forget",
    "policies",
    "policy_bundles",
    "quarantines",
    "requests",
    "rollouts",
    "status",
]
