"""The check of the journal at every start; SQLite's own check of the whole file would take seconds a gigabyte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.journal.database.connection import unsigned
from penstock.agent.journal.database.source_encoding import decode_source
from penstock.agent.state import DamagedError

if TYPE_CHECKING:
    import sqlite3


def prove(database: sqlite3.Connection) -> None:
    """Read the tables that every start needs.

    Raises:
        DamagedError: a value that the agent never writes; SQLite and the parsers raise their own errors.

    """
    for table in ("meta", "folds", "cursors", "pruned", "open_deferrals"):
        database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608  (constants)
    for epoch, hello, *counts in database.execute(
        "SELECT epoch, hello, watermark, last_seen_unix_nano, last_batch FROM sources"
    ):
        decode_source(unsigned(epoch), hello)
        if not all(isinstance(count, int) for count in counts):
            raise DamagedError(f"the watermark of epoch {unsigned(epoch)} is no number")
    for table, key in (("batches", "id"), ("kinds", "kind"), ("runs", "first"), ("buckets", "id")):
        database.execute(f"SELECT * FROM {table} ORDER BY {key} DESC LIMIT 1").fetchall()  # noqa: S608  (constants)
    database.execute("SELECT sum(length(keys)) FROM recent").fetchall()
    (last,) = database.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
    for (counted,) in database.execute("SELECT batch FROM folds"):
        if not 0 <= counted <= last:
            raise DamagedError(f"the counters stand at batch {counted}; the log has batches up to {last}")


def check_version(database: sqlite3.Connection) -> None:
    """Compare the schema's version in the file's header with the one that is stored in the content.

    Raises:
        DamagedError: they differ.

    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if database.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'meta'").fetchone() == (0,):
        return
    row = database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if row is not None and row[0] != version:
        raise DamagedError(f"its header says schema {version}, its content {row[0]}")
