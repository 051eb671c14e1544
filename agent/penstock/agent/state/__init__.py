"""The state directory: its owner, its disk budget, archived databases."""

from __future__ import annotations

from penstock.agent.state.archive import (
    DamagedError,
    DatabaseFiles,
    archive_database,
    check_foreign,
    count_damaged,
    error_text,
    is_bad_state,
    is_damage,
    is_unwritable,
    set_aside,
    size_of,
    trim_archive,
    write_copy,
)
from penstock.agent.state.budget import DEFAULT_LIMIT, MIB, MIN_LIMIT, Budget
from penstock.agent.state.directory import LOCK, StateDirectory, find_foreign_link, is_writable_by_others
from penstock.agent.state.file_lock import Lock, file_identity

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
    "archive_database",
    "check_foreign",
    "count_damaged",
    "error_text",
    "file_identity",
    "find_foreign_link",
    "is_bad_state",
    "is_damage",
    "is_unwritable",
    "is_writable_by_others",
    "set_aside",
    "size_of",
    "trim_archive",
    "write_copy",
]
