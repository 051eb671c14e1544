"""The state directory: its owner, its disk budget, what was set aside."""

from __future__ import annotations

from penstock.agent.state.archive import (
    DamagedError,
    archive,
    damaged,
    is_damage,
    is_unwritable,
    set_aside,
    size_of,
    spoils_a_start,
    trim,
    words_of,
)
from penstock.agent.state.database_files import DatabaseFiles, write_copy
from penstock.agent.state.directory import LOCK, StateDirectory, foreign_link, stays_open
from penstock.agent.state.disk_budget import DEFAULT_LIMIT, MIB, MIN_LIMIT, Budget
from penstock.agent.state.file_lock import Lock, identity

__all__ = [
    "DEFAULT_LIMIT",
    "LOCK",
    "MIB",
    "MIN_LIMIT",
    "Budget",
    "DamagedError",
    "DatabaseFiles",
    "Lock",
    "StateDirectory",
    "archive",
    "damaged",
    "foreign_link",
    "identity",
    "is_damage",
    "is_unwritable",
    "set_aside",
    "size_of",
    "spoils_a_start",
    "stays_open",
    "trim",
    "words_of",
    "write_copy",
]
