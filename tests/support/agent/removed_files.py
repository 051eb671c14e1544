"""What people do to the files of a database that is open, for tests."""

from __future__ import annotations

import shutil
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def all_files(database: Path) -> None:
    """Remove all that is in the directory."""
    for path in database.parent.iterdir():
        path.unlink()


def the_directory(database: Path) -> None:
    """Remove the directory, at once: what is put back meanwhile stays."""
    gone = database.parent.with_name("gone")
    database.parent.rename(gone)
    shutil.rmtree(gone)


def the_directory_moved(database: Path) -> None:
    """Move the directory away."""
    database.parent.rename(database.parent.with_name("elsewhere"))


def the_file(database: Path) -> None:
    """Remove the file alone."""
    database.unlink()


def the_write_ahead_log(database: Path) -> None:
    """Remove what the newest commits are in."""
    database.with_name(f"{database.name}-wal").unlink()


def another_database(database: Path) -> None:
    """Put another one in its place."""
    other = database.with_name("other")
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    other.rename(database)


def another_with_its_log(database: Path) -> None:
    """Put another one that is in use in its place, with its write-ahead log."""
    other = database.with_name("other")
    connection = sqlite3.connect(other)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (x)")
    for suffix in ("-wal", ""):
        other.with_name(other.name + suffix).rename(database.with_name(database.name + suffix))
    connection.close()


def an_empty_file(database: Path) -> None:
    """Put an empty one in its place."""
    database.unlink()
    database.touch()


def a_directory(database: Path) -> None:
    """Put a directory in its place."""
    database.unlink()
    database.mkdir()


def a_link(database: Path) -> None:
    """Move it and leave a link to it."""
    moved = database.with_name("moved")
    database.rename(moved)
    database.symlink_to(moved)


HARMS: dict[Callable[[Path], None], int] = {
    all_files: 0,
    the_directory: 0,
    the_directory_moved: 0,
    the_file: 0,
    the_write_ahead_log: 0,
    another_database: 1,
    another_with_its_log: 1,
    an_empty_file: 1,
    a_directory: 1,
    a_link: 1,
}
"""Each, and how many directories of what was set aside are there afterwards."""
