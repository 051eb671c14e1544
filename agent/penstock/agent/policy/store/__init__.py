"""``policy.db``: policies with generations, and a bounded audit log."""

from __future__ import annotations

from penstock.agent.policy.store import audit
from penstock.agent.policy.store.audit import MAX_TEXT, AuditEntry, AuditLimit
from penstock.agent.policy.store.clock_steps import ClockSteps, boot_seconds
from penstock.agent.policy.store.database import FILE_NAME, PolicyDatabase, create_tables
from penstock.agent.policy.store.history import policy_sources
from penstock.agent.policy.store.interface import (
    FILE_PREFIX,
    IMPERATIVE,
    MAX_POLICIES,
    Applied,
    AppliedAll,
    Clock,
    OwnedManifest,
    Store,
    StoredPolicy,
)
from penstock.agent.policy.store.sqlite_store import PolicyStore

__all__ = [
    "FILE_NAME",
    "FILE_PREFIX",
    "IMPERATIVE",
    "MAX_POLICIES",
    "MAX_TEXT",
    "Applied",
    "AppliedAll",
    "AuditEntry",
    "AuditLimit",
    "Clock",
    "ClockSteps",
    "OwnedManifest",
    "PolicyDatabase",
    "PolicyStore",
    "Store",
    "StoredPolicy",
    "audit",
    "boot_seconds",
    "create_tables",
    "policy_sources",
]
