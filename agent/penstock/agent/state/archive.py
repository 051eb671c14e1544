"""Watches the files of an open database, and restores them if they are removed or replaced; checks one that anybody made.

A file that is removed or replaced while it is open lives on for the process that has it open, and dies with it: what is
committed to it then is lost at the next start. So its content is written to its path again, from the open file.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import PenstockError, StateError
from penstock.agent.state.file_lock import file_identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]

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


# The others hold nothing that is needed after the process.
_WATCHED = ("", "-wal")
# Seconds for which the agent counts as degraded after it has put a database back: something removes its files.
_TOLD_SECONDS = 3600.0
_NOISE = re.compile(r"--[^\n]*|\s+")


def write_copy(database: sqlite3.Connection, path: Path) -> None:
    """Write what is committed in *database* to *path*, which is not there yet, for its owner alone; it is on the disk then.

    Raises:
        OSError: it cannot be written.
        sqlite3.Error: likewise.

    """
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with closing(sqlite3.connect(path)) as target:
            database.backup(target)
        os.fsync(handle)
    finally:
        os.close(handle)


class DatabaseFiles:
    """The files of an open database. Any thread may check them, one at a time may restore them.

    Args:
        path: of the database, which is open.
        reopen: opens it once more, for what is at *path* by then.
        claim: verifies that the directory exists and is this agent's own; raises StateError if it is not.

    Attributes:
        restored: number of restores.

    """

    def __init__(
        self,
        path: Path,
        reopen: Callable[[Path], sqlite3.Connection],
        claim: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._reopen = reopen
        self._claim = claim
        self._files = self._identities()
        self._names = self._files.keys()
        self._stale = False
        self._notice = ""
        self._told_at = 0.0
        self.restored = 0

    def _identities(self) -> dict[Path, Identity]:
        paths = [self._path.with_name(self._path.name + suffix) for suffix in _WATCHED]
        return {path: found for path in paths if (found := file_identity(path)) is not None}

    def trouble(self) -> str:
        """Return a sentence about files that were removed or replaced; empty if all are in place."""
        for path, ours in self._files.items():
            with suppress(OSError):  # One that cannot be looked at may well be there.
                found = file_identity(path)
                if found != ours:
                    return f"{path} was {'removed' if found is None else 'replaced'} while the agent ran"
        return ""

    def require_in_place(self) -> None:
        """Verify that a new connection finds the open files.

        Over another one at the same path, it would begin the shared memory anew that the open one uses.

        Raises:
            StateError: they are gone and will be restored within a second.

        """
        if trouble := self.trouble():
            raise StateError(f"{trouble} and is being restored; retry in a second")

    @property
    def notice(self) -> str:
        """A sentence about the last restore, for an hour after it; else empty."""
        return self._notice if time.monotonic() < self._told_at + _TOLD_SECONDS else ""

    def unwatch(self) -> None:
        """Stop watching: the database was closed, and SQLite has removed its temporary files."""
        self._files = {}

    def restore_if_moved(self, database: sqlite3.Connection) -> sqlite3.Connection:
        """Return the connection to use: *database*, or a new one after its files were restored.

        *database* must be in no transaction; it is closed if there is a new one. Blocks during the copy.

        Raises:
            StateError: it could not be put back; *database* holds everything still, and is what is tried again with.

        """
        trouble = self.trouble()
        if not (trouble or self._stale):
            return database
        try:
            if trouble:
                self._put_back(database, trouble)
            fresh = self._open_anew()
        except (sqlite3.Error, OSError, StateError) as error:
            what = trouble or f"{self._path} was written anew"
            raise StateError(f"{what} and cannot be restored: {error}") from error
        self._stale = False
        database.close()
        self.restored += 1
        return fresh

    def _open_anew(self) -> sqlite3.Connection:
        """Open the copy; refuse a file that has replaced it meanwhile."""
        fresh = self._reopen(self._path)
        files = self._identities()
        if files.keys() != self._names or files[self._path] != self._files[self._path]:
            fresh.close()
            raise StateError("it was removed once more")
        self._files = files
        return fresh

    def _put_back(self, database: sqlite3.Connection, trouble: str) -> None:
        self._claim()
        written = self._path.with_suffix(".tmp")
        written.unlink(missing_ok=True)
        write_copy(database, written)
        self._make_way(trouble)
        copy = os.lstat(written)
        written.replace(self._path)
        self._files, self._stale = {self._path: (copy.st_dev, copy.st_ino)}, True
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._notice = (
            f"{trouble}; the agent restored it at {now} without loss. "
            f"Find out what removes files from {self._path.parent}"
        )
        self._told_at = time.monotonic()
        _log.error("a database was removed or replaced; restored from the open file", what=trouble)

    def _make_way(self, trouble: str) -> None:
        """Clear the path for the copy: nothing that belongs to another file may lie beside it, not for a moment.

        Another database's write-ahead log would be read as its own, and the old shared memory is in use.
        """
        foreign = file_identity(self._path) not in (None, self._files.get(self._path))
        beside = [self._path.with_name(self._path.name + suffix) for suffix in SUFFIXES[1:]]
        for path in beside:
            if not foreign or file_identity(path) == self._files.get(path):
                path.unlink(missing_ok=True)
        if foreign:
            set_aside(self._path, trouble)


def check_foreign(path: Path, create: Callable[[sqlite3.Connection], None]) -> None:
    """Check that the database has the tables that *create* makes and no others: no view or trigger of a stranger.

    Raises:
        DamagedError: it has others, or is damaged.

    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        create(fresh)
        expected, (version,) = _tables(fresh), fresh.execute("PRAGMA user_version").fetchone()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            if database.execute("PRAGMA user_version").fetchone() != (version,):
                raise DamagedError("it is of another version")
            if _tables(database) != expected:
                raise DamagedError("its tables are not those that an agent makes")
            if database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise DamagedError("SQLite finds it damaged")
    except sqlite3.Error as error:
        raise DamagedError(str(error)) from error


def _tables(database: sqlite3.Connection) -> set[tuple[str, str, str, str]]:
    rows = database.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema")
    return {(kind, name, table, _NOISE.sub("", sql)) for kind, name, table, sql in rows}
