"""Connections to the journal's database, and the mapping of its errors."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from penstock.agent.errors import StateError, UnwritableError
from penstock.agent.state import DamagedError, is_unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.agent.state import Budget

# The wire's times and counts are unsigned, SQLite's integers are not.
MAX_INTEGER = (1 << 63) - 1
_SIGN = 1 << 63
_WRAP = 1 << 64


def blob(value: object) -> bytes:
    """Return a column's value, which SQLite does not type, as bytes.

    Raises:
        DamagedError: it is not.

    """
    if not isinstance(value, bytes):
        raise DamagedError(f"a column of bytes holds {value!r:.80}")
    return value


def whole(value: object) -> int:
    """Return a column's value as an integer.

    Raises:
        DamagedError: it is not.

    """
    if not isinstance(value, int):
        raise DamagedError(f"a column of numbers holds {value!r:.80}")
    return value


def signed(epoch: int) -> int:
    """Map the wire's unsigned 64 bits to SQLite's signed ones."""
    return epoch - _WRAP if epoch >= _SIGN else epoch


def unsigned(epoch: int) -> int:
    """Undo :func:`signed`."""
    return epoch + _WRAP if epoch < 0 else epoch


def _open(path: Path, mode: str) -> sqlite3.Connection:
    # As URI, so that a reader never creates the file. Path.as_uri quotes it.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=10.0,
    )


def connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    """Open a connection for writing in autocommit mode; transactions are explicit.

    With the *mode* ``rw`` the file must be there.

    WAL with ``synchronous = NORMAL``: a commit survives the death of the process; the death of the machine may
    cost the last commits but never the file. One thread at a time may use a connection.
    """
    database = _open(path, mode)
    try:
        # Takes effect in a file that is still empty: pages that are free can be given back to the system.
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        # Some builds overwrite with zeros what is deleted: every page that retention frees would be written once more.
        database.execute("PRAGMA secure_delete = OFF")
    except BaseException:
        database.close()
        raise
    return database


def limit_to(database: sqlite3.Connection, budget: Budget) -> None:
    """Limit the database's file and its write-ahead log to *budget*."""
    database.execute(f"PRAGMA wal_autocheckpoint = {budget.checkpoint_pages}")
    # What the write-ahead log keeps on disk after a burst.
    database.execute(f"PRAGMA journal_size_limit = {budget.wal}")
    database.execute(f"PRAGMA max_page_count = {budget.max_pages}")


def run_to_end(database: sqlite3.Connection, statement: str) -> None:
    """Run a *statement* that does a part of its work at each step and has no columns; outside of a transaction.

    From Python 3.11 on ``execute`` steps such a statement once, whatever is fetched: ``PRAGMA incremental_vacuum``
    then frees one page.
    """
    with closing(database.cursor()) as cursor:
        cursor.executescript(statement)


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a read-only connection to an existing database."""
    return _open(path, "ro")


@contextmanager
def journal_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and damage, into a :class:`StateError` that names the file.

    It is an `UnwritableError` if the disk is to blame.
    """
    try:
        yield
    except (sqlite3.Error, OSError, DamagedError) as error:
        kind = UnwritableError if is_unwritable(error) else StateError
        raise kind(f"the journal {str(path)!r} cannot be used: {error}") from error
