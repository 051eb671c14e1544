"""The journal's files: the schema of its database, how that is opened and checked at every start, and the reserve on disk.

SQLite's own check of the whole file would take seconds a gigabyte.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import StateError
from penstock.agent.journal.database.connection import connect, journal_errors, limit_to, unsigned
from penstock.agent.journal.database.stored_rows import decode_source
from penstock.agent.state import (
    MIN_LIMIT,
    Budget,
    DamagedError,
    archive_database,
    is_bad_state,
    size_of,
    trim_archive,
)

if TYPE_CHECKING:
    from pathlib import Path

FILE = "journal.db"
_MODE = 0o600

VERSION = 1
"""``PRAGMA user_version`` of a journal; a database of any other version is refused."""

_SCHEMA = """
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
    closed_unix_nano INTEGER,           -- said goodbye, or was found lost or stopped
    last_batch INTEGER NOT NULL         -- the newest batch: once it is deleted, the source may be forgotten
);

-- AUTOINCREMENT: an id is never used twice, even after the newest rows were deleted.
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    received_unix_nano INTEGER NOT NULL,
    body BLOB NOT NULL,
    packed INTEGER NOT NULL             -- how the body is stored: journal.compression
);
CREATE INDEX batches_received ON batches (received_unix_nano);

-- Which batches hold events of a kind (the number of the field in Event.body), and the time of the newest of them.
CREATE TABLE kinds (
    kind INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    newest_unix_nano INTEGER NOT NULL,
    PRIMARY KEY (kind, batch)
) WITHOUT ROWID;

-- The keys of the requests that a batch names, until they move into a run; packed by journal.index.disk_format.
CREATE TABLE recent (batch INTEGER PRIMARY KEY, keys BLOB NOT NULL);

-- A run has the keys of the batches from its first to its last.
CREATE TABLE runs (
    first INTEGER PRIMARY KEY,
    last INTEGER NOT NULL,
    passing BLOB NOT NULL               -- a filter: most keys that are not in the run do not pass it
);
-- Its keys, each with its batch: id is first * 256 + the first eight bits of the keys.
CREATE TABLE buckets (id INTEGER PRIMARY KEY, body BLOB NOT NULL);

-- Deferrals that have begun and not ended; start is the serialized event, batch the one that holds it.
CREATE TABLE open_deferrals (
    epoch INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    reason INTEGER NOT NULL,
    start BLOB NOT NULL,
    batch INTEGER NOT NULL,
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

-- What was deleted to stay within the limit; one row.
CREATE TABLE pruned (batches INTEGER NOT NULL, unexported INTEGER NOT NULL);
INSERT INTO pruned VALUES (0, 0);
"""
RESERVE_FILE = "reserve"


def create_schema(database: sqlite3.Connection) -> None:
    """Create the tables in a database that is empty, in one transaction; leave one that has them as it is.

    Raises:
        StateError: it is of another version.

    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise StateError(
            f"the journal has schema {version} and this agent reads schema {VERSION} only; "
            "move the state directory away, or give --state-dir an empty one"
        )
    if not version:
        with contextlib.closing(database.cursor()) as cursor:
            cursor.executescript(f"BEGIN IMMEDIATE;{_SCHEMA};PRAGMA user_version = {VERSION};COMMIT;")


class Opened(NamedTuple):
    """The journal's database, ready for use."""

    database: sqlite3.Connection
    budget: Budget


def open_database(state_dir: Path, pod_uid: str, limit: int) -> Opened:
    """Open or create the journal's database for writing; all of the state directory has *limit* bytes.

    The state of another pod (*pod_uid* differs) is kept beside it as ``journal-<time>.db``; counting starts anew.

    Raises:
        StateError: one sentence, for a directory or a file that cannot be used.
        DamagedError, sqlite3.Error, ValueError: it is damaged, see :func:`is_bad_state`.

    """
    path = state_dir / FILE
    with journal_errors(path):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            database = _open(path, pod_uid)
        except sqlite3.DatabaseError as error:
            if not is_bad_state(error) and path.with_name(RESERVE_FILE).exists():
                # On a full disk even opening needs room; it is taken again when there is some.
                path.with_name(RESERVE_FILE).unlink()
            else:
                raise
            database = _open(path, pod_uid)
        try:
            budget = _share(state_dir, limit)
            limit_to(database, budget)
        except BaseException:
            database.close()
            raise
    return Opened(database, budget)


def _share(state_dir: Path, limit: int) -> Budget:
    """Give the journal what the limit leaves it beside all other files."""
    trim_archive(state_dir, limit // 2)
    own = {FILE, f"{FILE}-wal", f"{FILE}-shm", RESERVE_FILE}
    others = sum(size_of(place) for place in state_dir.iterdir() if place.name not in own)
    return Budget(max(MIN_LIMIT, limit - others))


def _open(path: Path, pod_uid: str) -> sqlite3.Connection:
    _make_private(path)
    database = connect(path)
    try:
        check_version(database)
        create_schema(database)
        if _belongs_to_another(database, pod_uid):
            # Folds the write-ahead log into the file, so that one rename moves all of it.
            database.execute("PRAGMA journal_mode = DELETE")
            database.close()
            archive_database(path)
            _make_private(path)
            database = connect(path)
            create_schema(database)
        # Without a change it writes nothing: the disk may be full.
        database.execute(
            "INSERT INTO meta VALUES ('schema', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            " WHERE value IS NOT excluded.value",
            (VERSION,),
        )
        database.execute("INSERT OR IGNORE INTO meta VALUES ('created_unix_nano', ?)", (time.time_ns(),))
        if pod_uid:
            # It is another one only in a new journal, so a start on a full disk need not write.
            database.execute("INSERT OR IGNORE INTO meta VALUES ('pod_uid', ?)", (pod_uid,))
        database.execute(
            "INSERT OR IGNORE INTO meta VALUES ('agent_epoch', ?)",
            (int.from_bytes(os.urandom(7), "big") + 1,),
        )
        prove(database)
    except BaseException:
        database.close()
        raise
    return database


def _make_private(path: Path) -> None:
    """Create the file for its owner alone: it names requests and peers. SQLite's other files take after it."""
    if not path.exists():
        # It stands for a journal that is there; a start that is interrupted here must not look like a loss.
        path.with_name(RESERVE_FILE).unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE))
    path.chmod(_MODE)


def _belongs_to_another(database: sqlite3.Connection, pod_uid: str) -> bool:
    row = database.execute("SELECT value FROM meta WHERE key = 'pod_uid'").fetchone()
    return row is not None and bool(pod_uid) and row[0] != pod_uid


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


class DiskReserve:
    """*size* bytes of disk at *path*. Nothing here raises: without it the agent only has less room."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self.held = False

    def acquire(self) -> None:
        """Allocate the space, if the disk has it."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, self._size)
                os.ftruncate(handle, self._size)
            finally:
                os.close(handle)
        except OSError:
            self.release()
            return
        self.held = True

    def release(self) -> None:
        """Free the space."""
        self.held = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            return  # On a disk that has become read-only nothing can be freed.
