"""A database file that may come from anybody: it is checked before anything reads it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.agent.state.archive import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NOISE = re.compile(r"--[^\n]*|\s+")


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
