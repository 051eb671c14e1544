"""The calls of the Admin service, a subject a module."""

from __future__ import annotations

from penstock.agent.admin.calls import (
    backup,
    bundles,
    diagnoses,
    drills,
    engines,
    events,
    forget,
<<<<<<< HEAD
    pairs,
=======
    holders,
>>>>>>> i19-suspects
    policies,
    policy_bundles,
    policy_rollouts,
    quarantines,
    requests,
    rollouts,
    stacks,
    status,
<<<<<<< HEAD
    what_if,
=======
    suspects,
>>>>>>> i19-suspects
)
from penstock.agent.admin.calls.backup import write_backup

__all__ = [
    "backup",
    "bundles",
    "diagnoses",
    "drills",
    "engines",
    "events",
    "forget",
<<<<<<< HEAD
    "pairs",
=======
    "holders",
>>>>>>> i19-suspects
    "policies",
    "policy_bundles",
    "policy_rollouts",
    "quarantines",
    "requests",
    "rollouts",
    "stacks",
    "status",
<<<<<<< HEAD
    "what_if",
=======
    "suspects",
>>>>>>> i19-suspects
    "write_backup",
]
