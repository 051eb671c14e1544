"""The database's schema, its version, and how an older one is brought up to it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from penstock.agent.errors import StateError
from penstock.agent.journal.connect import connect, describe

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

FILE = "journal.db"
_MODE = 0o600

# Step n brings a database of version n to n + 1. A step that was ever released never changes.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

    CREATE TABLE sources (
        epoch INTEGER PRIMARY KEY,          -- two's complement of the wire's unsigned 64 bits
        hello BLOB NOT NULL,
        server TEXT NOT NULL,
        engine TEXT NOT NULL,
        process TEXT NOT NULL,
        watermark INTEGER NOT NULL,
        opened_unix_nano INTEGER NOT NULL,
        last_seen_unix_nano INTEGER NOT NULL,
        closed_unix_nano INTEGER            -- said goodbye, or was found lost
    );

    -- AUTOINCREMENT: an id is never used twice, even after the newest rows were deleted.
    CREATE TABLE batches (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        received_unix_nano INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE INDEX batches_received ON batches (received_unix_nano);

    -- kind is the number of the field in Event.body.
    CREATE TABLE events (
        kind INTEGER NOT NULL,
        batch INTEGER NOT NULL,
        pos INTEGER NOT NULL,
        time_unix_nano INTEGER NOT NULL,
        PRIMARY KEY (kind, batch, pos)
    ) WITHOUT ROWID;

    -- Which batches name a request, by any of its ids.
    CREATE TABLE requests (
        request_id TEXT NOT NULL,
        batch INTEGER NOT NULL,
        PRIMARY KEY (request_id, batch)
    ) WITHOUT ROWID;

    -- Deferrals that have begun and not ended; start is the serialized event.
    CREATE TABLE open_deferrals (
        epoch INTEGER NOT NULL,
        request_id TEXT NOT NULL,
        reason INTEGER NOT NULL,
        start BLOB NOT NULL,
        PRIMARY KEY (epoch, request_id, reason)
    ) WITHOUT ROWID;

    CREATE TABLE folds (
        name TEXT PRIMARY KEY,
        batch INTEGER NOT NULL,
        body BLOB NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE cursors (
        name TEXT PRIMARY KEY,
        low INTEGER NOT NULL,
        exported INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
)
VERSION = len(MIGRATIONS)


def migrate(database: sqlite3.Connection, steps: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the database to the version ``len(steps)``, each step in a transaction of its own.

    Raises:
        StateError: it was written by a newer version.

    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(steps):
        raise StateError(
            f"the journal has schema {version}, this agent knows {len(steps)}; start the newer agent that wrote it, "
            "or give --state-dir an empty directory"
        )
    for number in range(version, len(steps)):
        with contextlib.closing(database.cursor()) as cursor:
            cursor.executescript(
                f"BEGIN IMMEDIATE;{steps[number]};PRAGMA user_version = {number + 1};COMMIT;"
            )


def prepare_directory(state_dir: Path) -> None:
    """Create the state directory if need be.

    Raises:
        StateError: it cannot be created or written.

    """
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the state directory {str(state_dir)!r} cannot be created ({error.strerror}); "
            "give --state-dir one that can be written"
        ) from error
    if not os.access(state_dir, os.R_OK | os.W_OK | os.X_OK):
        raise StateError(
            f"the state directory {str(state_dir)!r} cannot be written; give --state-dir one that can"
        )


def open_database(state_dir: Path, pod_uid: str) -> sqlite3.Connection:
    """Open or create the journal's database for writing.

    The state of another pod (*pod_uid* differs) is kept beside it as ``journal-<time>.db``; counting starts anew.

    Raises:
        StateError: one sentence, for a directory or a file that cannot be used.

    """
    prepare_directory(state_dir)
    path = state_dir / FILE
    with describe(path):
        _make_private(path)
        database = connect(path)
        try:
            migrate(database)
            if _belongs_to_another(database, pod_uid):
                # Folds the write-ahead log into the file, so that one rename moves all of it.
                database.execute("PRAGMA journal_mode = DELETE")
                database.close()
                path.rename(state_dir / f"journal-{time.time_ns()}.db")
                _make_private(path)
                database = connect(path)
                migrate(database)
            database.execute("INSERT OR IGNORE INTO meta VALUES ('created_unix_nano', ?)", (time.time_ns(),))
            if pod_uid:
                database.execute("INSERT OR REPLACE INTO meta VALUES ('pod_uid', ?)", (pod_uid,))
            database.execute(
                "INSERT OR IGNORE INTO meta VALUES ('agent_epoch', ?)",
                (int.from_bytes(os.urandom(7), "big") + 1,),
            )
        except BaseException:
            database.close()
            raise
    return database


def _make_private(path: Path) -> None:
    """Create the file for its owner alone: it names requests and peers. SQLite's other files take after it."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE))
    path.chmod(_MODE)


def _belongs_to_another(database: sqlite3.Connection, pod_uid: str) -> bool:
    row = database.execute("SELECT value FROM meta WHERE key = 'pod_uid'").fetchone()
    return row is not None and bool(pod_uid) and row[0] != pod_uid
