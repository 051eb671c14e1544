"""Emitting processes: live sources, their last snapshots, and the account of their entries. Pure."""

from __future__ import annotations

from penstock.agent.sources.engines import EngineOwners, EngineRoles, Ownership, engine_role
from penstock.agent.sources.held_blocks import HOLDERS, blocks_by_holder, held_rows, lease_row
from penstock.agent.sources.registry import Account, Accounts, EngineView, LiveSource, Registry

__all__ = [
    "HOLDERS",
    "Account",
    "Accounts",
    "EngineOwners",
    "EngineRoles",
    "EngineView",
    "LiveSource",
    "Ownership",
    "Registry",
    "blocks_by_holder",
    "engine_role",
    "held_rows",
    "lease_row",
]
