"""A damaged journal: set aside, and replaced by what can be read of it."""

from __future__ import annotations

from penstock.agent.journal.repair.recovery import mark_damaged, replace_damaged

__all__ = ["mark_damaged", "replace_damaged"]
