"""Connections to an existing ``policy.db``."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from penstock.agent.state import is_unwritable

if TYPE_CHECKING:
    from pathlib import Path


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection; in exclusive mode if the disk has no room for the shared-memory file."""
    try:
        return _begin(path, "NORMAL")
    except sqlite3.OperationalError as error:
        if not is_unwritable(error):
            raise
        return _begin(path, "EXCLUSIVE")


def _begin(path: Path, locking: str) -> sqlite3.Connection:
    # mode=rw: never creates the file.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )
    try:
        connection.execute(f"PRAGMA locking_mode = {locking}")
        connection.execute("PRAGMA user_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
