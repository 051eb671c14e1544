"""Archived databases, kept for inspection: damaged ones, and those of another pod.

They lie in the state directory and share its limit, the youngest first.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
import time
from collections import Counter
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

_log = structlog.get_logger(__name__)

_DAMAGED = "state.corrupt-"
_ARCHIVE = "journal-"
# SQLite's primary result codes. A row that is refused contradicts what is there: the log's own numbers are never given twice.
_READ_ONLY, _IO_ERROR, _CORRUPT, _FULL, _CONSTRAINT, _MISMATCH, _NOT_A_DATABASE = 8, 10, 11, 13, 19, 20, 26
_DAMAGE = frozenset((_CORRUPT, _CONSTRAINT, _MISMATCH, _NOT_A_DATABASE))
# What says nothing about a file's content: permissions, locks, memory, the disk.
_SYSTEM = frozenset((3, 5, 6, 7, 8, 9, 10, 13, 14, 22, 23))
# Extended codes: the system could not read what is there.
_READ, _SHORT_READ = 266, 522
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
SUFFIXES = ("", "-wal", "-shm", "-journal")
"""A database is its file and these."""


class DamagedError(Exception):
    """A database holds a value that the agent never writes."""


def is_damage(error: BaseException) -> bool:
    """Return whether *error* means damage of a file, not a lock, a full disk or missing permission."""
    # SQLite's message, or a text, holds bytes that are none.
    if isinstance(error, DamagedError | UnicodeDecodeError) or str(error).startswith("Could not decode"):
        return True
    return _code(error) in _DAMAGE


def is_unwritable(error: BaseException) -> bool:
    """Return whether *error* means that the disk is full, read-only or broken."""
    if isinstance(error, OSError):
        return error.errno in _UNWRITABLE
    return _code(error) in (_READ_ONLY, _IO_ERROR, _FULL)


def _code(error: BaseException) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0) if isinstance(error, sqlite3.Error) else 0
    return code & 0xFF


def is_bad_state(error: BaseException) -> bool:
    """Return whether *error*, raised while a start reads the state, is caused by its content.

    That is everything but a sentence of ours, and what is wrong with the system: the agent wrote what it reads, so what it
    cannot make sense of is damage.
    """
    if is_damage(error):
        return True
    if isinstance(error, PenstockError):
        # A sentence about what SQLite said.
        return isinstance(error.__cause__, sqlite3.Error | DamagedError) and is_bad_state(error.__cause__)
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        return code in (_READ, _SHORT_READ) or code & 0xFF not in _SYSTEM
    # What is no Exception ends the agent: a start that is cancelled by SIGTERM has found nothing.
    return isinstance(error, Exception) and not isinstance(error, OSError | MemoryError)


def error_text(error: BaseException) -> str:
    """Return the text of *error*, or its class, in ASCII."""
    return (str(error) or type(error).__name__).encode("ascii", "replace").decode()


def set_aside(database: Path, reason: str) -> Path:
    """Move an unusable database into ``state.corrupt-<time>`` beside it; return that directory.

    Raises:
        OSError: it cannot be moved.

    """
    place = database.parent / f"{_DAMAGED}{time.time_ns()}"
    place.mkdir(mode=0o700)
    for suffix in SUFFIXES:
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(place / part.name)
    _log.error("a database was set aside", database=database.name, place=str(place), reason=reason)
    return place


def archive_database(database: Path) -> Path:
    """Rename the closed journal of another pod to ``journal-<time>.db``."""
    place = database.with_name(f"{_ARCHIVE}{time.time_ns()}.db")
    database.rename(place)
    return place


def count_damaged(state_dir: Path) -> dict[str, int]:
    """Return the number of damaged databases in the state directory, by file stem."""
    found = Counter({"journal": 0, "policy": 0})
    for place in state_dir.glob(f"{_DAMAGED}*"):
        found.update(file.stem for file in place.glob("*.db"))
    return dict(found)


def trim_archive(state_dir: Path, allowance: int) -> None:
    """Delete archived databases beyond *allowance* bytes, the oldest first."""
    places = [
        place
        for place in (*state_dir.glob(f"{_DAMAGED}*"), *state_dir.glob(f"{_ARCHIVE}*.db"))
        if _stamp(place)
    ]
    left = allowance
    for place in sorted(places, key=_stamp, reverse=True):
        size = size_of(place)
        left -= size
        if left < 0:
            left = 0
            _log.warning(
                "the state directory is over its limit; archived database deleted",
                place=str(place),
                bytes=size,
            )
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)


def size_of(place: Path) -> int:
    """Return the bytes of a file or of all files below a directory; files removed meanwhile count 0."""
    total = 0
    for path in place.rglob("*") if place.is_dir() else (place,):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _stamp(place: Path) -> int:
    text = place.name.removeprefix(_DAMAGED).removeprefix(_ARCHIVE).removesuffix(".db")
    return int(text) if text.isascii() and text.isdigit() else 0
