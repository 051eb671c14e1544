"""Watches the files of an open database, and restores them if they are removed or replaced; checks one that anybody made.

A file that is removed or replaced while it is open lives on for the process that has it open, and dies with it: what is
committed to it then is lost at the next start. So its content is written to its path again, from the open file.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError
from penstock.agent.state.archive import SUFFIXES, DamagedError, set_aside
from penstock.agent.state.file_lock import file_identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]

_log = structlog.get_logger(__name__)

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
