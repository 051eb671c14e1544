"""Connections to the journal's database, and its errors as sentences."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.agent.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SIGN = 1 << 63
_WRAP = 1 << 64


def signed(epoch: int) -> int:
    """Map the wire's unsigned 64 bits to SQLite's signed ones."""
    return epoch - _WRAP if epoch >= _SIGN else epoch


def unsigned(epoch: int) -> int:
    """Undo :func:`signed`."""
    return epoch + _WRAP if epoch < 0 else epoch


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; a transaction begins where the code says so.

    WAL with ``synchronous = NORMAL``: a commit survives the death of the process; the death of the machine may
    cost the last commits but never the file. One thread at a time may use a connection.
    """
    # The path as URI, so that a reader never creates the file. Path.as_uri quotes it.
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=10.0,
    )
    if not read_only:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 4000")
        # Bounds what the log keeps on disk after a burst.
        database.execute("PRAGMA journal_size_limit = 67108864")
    return database


@contextmanager
def describe(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a :class:`StateError` that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StateError(f"the journal {str(path)!r} cannot be used: {error}") from error
