"""Recovery of a damaged journal: it is marked, set aside, and replaced by what can be read of it."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from penstock.agent.journal.database import FILE, RESERVE_FILE
from penstock.agent.journal.repair.salvage import Salvage
from penstock.agent.state import is_bad_state, is_unwritable, set_aside, size_of

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger(__name__)

_MODE = 0o600
# The part of the limit (1/16) that is kept of a log at least; where the damaged one leaves more room, half of that.
_SHARE = 16


def mark_damaged(path: Path, reason: str) -> None:
    """Mark the journal at *path*, so that the next :func:`replace_damaged` sets it aside."""
    _marker(path).touch(_MODE)
    _marker(path).write_text(reason, errors="replace")


def replace_damaged(path: Path, limit: int, *, salvages: bool) -> None:
    """Set the journal at *path* aside if it is known to be damaged; with *salvages*, put what can be read of it in its place.

    That is tried once: the mark goes first, so that a file which ends the process does not end the next one. The state
    directory has *limit* bytes.

    Raises:
        OSError: it cannot be moved, or the disk takes nothing; then it is where it was, for a start that has room.
        sqlite3.Error: likewise.

    """
    # What an interrupted one has left.
    for suffix in ("", "-wal", "-shm", "-journal"):
        _written(path).with_name(_written(path).name + suffix).unlink(missing_ok=True)
    reason = _damage_of(path)
    if not reason:
        return
    place = set_aside(path, reason)
    _marker(path).unlink(missing_ok=True)
    try:
        said = _salvage(place / FILE, path, limit) if salvages else ""
    except (OSError, sqlite3.Error):
        _put_back(place, path, reason)
        raise
    _log.error("the journal was damaged", place=str(place), kept=said or "nothing; counters begin anew")


def _put_back(place: Path, path: Path, reason: str) -> None:
    for part in place.iterdir():
        part.rename(path.with_name(part.name))
    place.rmdir()
    # Without the mark the next start meets the damage again.
    with suppress(OSError):
        mark_damaged(path, reason)


def _salvage(damaged: Path, path: Path, limit: int) -> str:
    """Return a text about what was kept; empty if the journal starts empty."""
    written = _written(path)
    size = max(limit // _SHARE, (limit - size_of(damaged.parent)) // 2)
    try:
        said = Salvage(damaged, written, size).run()
    except Exception as error:
        if is_unwritable(error) and not is_bad_state(error):
            written.unlink(missing_ok=True)
            raise
        # A new journal is better than none.
        _log.warning("the damaged journal could not be read", error=str(error))
        said = ""
    if said:
        written.chmod(_MODE)
        written.replace(path)
    else:
        written.unlink(missing_ok=True)
    return said


def _written(path: Path) -> Path:
    return path.with_name(f"{path.stem}.salvaged")


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")


def _damage_of(path: Path) -> str:
    """Return the damage that is known before it is opened; empty for none."""
    if _marker(path).exists():
        return _marker(path).read_text(errors="replace") or "an earlier life of the agent found damage in it"
    return "it is empty" if _was_cut_to_nothing(path) else ""


def _was_cut_to_nothing(path: Path) -> bool:
    """Return whether the file was truncated to nothing: to SQLite an empty file is a new database."""
    beside = (path.with_name(RESERVE_FILE), path.with_name(f"{path.name}-wal"))
    return path.exists() and not size_of(path) and any(size_of(place) for place in beside)
