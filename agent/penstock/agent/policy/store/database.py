"""``policy.db``: the SQLite file of policies, audit log, pauses and orders."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError, UnwritableError
from penstock.agent.policy.store import audit
from penstock.agent.policy.store.audit import AuditLimit
from penstock.agent.policy.store.recovery import connect, copy_of, recover
from penstock.agent.state import DatabaseFiles, is_unwritable, write_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_log = structlog.get_logger(__name__)

FILE_NAME = "policy.db"
_DEFAULT_AUDIT = AuditLimit()
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE counter (one INTEGER PRIMARY KEY CHECK (one = 1), generation INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 0);
CREATE TABLE policy (
  name TEXT PRIMARY KEY,
  generation INTEGER NOT NULL,
  manifest TEXT NOT NULL,
  owner TEXT NOT NULL,
  author TEXT NOT NULL,
  changed_unix_nano INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  time_unix_nano INTEGER NOT NULL,
  author TEXT NOT NULL,
  action TEXT NOT NULL,
  name TEXT NOT NULL,
  reason TEXT NOT NULL,
  old_generation INTEGER NOT NULL,
  new_generation INTEGER NOT NULL,
  old_manifest TEXT NOT NULL,
  new_manifest TEXT NOT NULL
);
CREATE INDEX audit_by_name ON audit (name, new_generation);
CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TABLE pause (
  server TEXT NOT NULL,
  engine TEXT NOT NULL,
  paused INTEGER NOT NULL,
  PRIMARY KEY (server, engine)
) WITHOUT ROWID;
CREATE TABLE timed_order (
  number INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  document TEXT NOT NULL
);
"""


class PolicyDatabase:
    """A connection for all threads, one at a time.

    Attributes:
        recovered: what was done about a damaged or missing database at the start; else empty.
        audit_trimmed: number of audit entries ever deleted by the limit.
        whereabouts: checks that the files are still in place.

    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        recovered: str = "",
        audit_limit: AuditLimit = _DEFAULT_AUDIT,
        claim: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._audit_limit = audit_limit
        self._lock = threading.Lock()
        self._copy = copy_of(path)
        self._copied = False
        self.recovered = recovered
        self.whereabouts = DatabaseFiles(path, _reopen, claim)
        try:
            self.audit_trimmed, _ = audit.trimmed(connection)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        state_dir: Path,
        audit_limit: AuditLimit = _DEFAULT_AUDIT,
        claim: Callable[[], None] = lambda: None,
        *,
        damage: str = "",
        copies: bool = True,
    ) -> PolicyDatabase:
        """Open ``policy.db`` below *state_dir*, or create it.

        A damaged database is archived and replaced by the copy of :meth:`copy`; the audit log records that. An intact one
        is not written to: the disk may be full.

        Args:
            state_dir: its directory.
            audit_limit: of its audit log.
            claim: checks that the directory exists and belongs to this agent.
            damage: damage found by a reader; empty for none.
            copies: whether to try the copy.

        Raises:
            UnwritableError: it must be written, and the disk is full or read-only.
            StateError: it cannot be opened, or is of another version.

        """
        path = state_dir / FILE_NAME
        try:
            recovered = recover(path, _SCHEMA_VERSION, damage, copies=copies)
            database = cls(_open(path), path, recovered, audit_limit, claim)
        except (sqlite3.Error, OSError) as error:
            kind = UnwritableError if is_unwritable(error) else StateError
            raise kind(f"{path} cannot be used ({error}); check the disk of --state-dir") from error
        if recovered:
            change = audit.Change(author="penstock-agent", action="recover", name=FILE_NAME, reason=recovered)
            # On a full disk, only the agent's log has it.
            with suppress(StateError), database.transaction() as connection:
                audit.append(connection, change, time.time_ns())
        return database

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write: commit at the end, roll back on an error.

        Raises:
            StateError: SQLite refused (a full or broken disk), or the file was removed and cannot be put back.

        """
        with self._lock:
            self._settle()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                audit.trim(self._connection, self._audit_limit, time.time_ns())
                count, _ = audit.trimmed(self._connection)
                self._connection.execute("COMMIT")
                self._copied, self.audit_trimmed = False, count
            except sqlite3.Error as error:
                self._roll_back()
                raise StateError(
                    f"{FILE_NAME} cannot be written ({error}); check the disk of --state-dir"
                ) from error
            except BaseException:
                self._roll_back()
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read, excluding writers.

        Raises:
            StateError: SQLite refused.

        """
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StateError(
                    f"{FILE_NAME} cannot be read ({error}); check the disk of --state-dir"
                ) from error

    def copy(self) -> None:
        """Write the copy, if anything has changed since the last one; blocks for milliseconds.

        A removed or replaced database is restored first.

        Raises:
            StateError: the copy could not be written; the earlier one stays.

        """
        with self._lock:
            self._settle()
            if self._copied and self._copy.exists():
                return
            try:
                self._write_copy()
            except (sqlite3.Error, OSError) as error:
                raise StateError(f"{self._copy} cannot be written ({error}); check --state-dir") from error
            self._copied = True

    def backup(self, path: Path) -> None:
        """Write the committed state to *path*, which must not exist.

        Raises:
            StateError: it could not be written.

        """
        with self._lock:
            try:
                write_copy(self._connection, path)
            except (sqlite3.Error, OSError) as error:
                raise StateError(f"{path} cannot be written ({error})") from error

    def _write_copy(self) -> None:
        written = self._copy.with_suffix(".tmp")
        written.unlink(missing_ok=True)
        write_copy(self._connection, written)
        written.replace(self._copy)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._lock:
            self._connection.close()
            self.whereabouts.unwatch()

    def _settle(self) -> None:
        self._connection = self.whereabouts.restore_if_moved(self._connection)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _open(path: Path) -> sqlite3.Connection:
    # SQLite copies these permissions to its side files; the audit log is private.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = _reopen(path)
    try:
        create_tables(connection, str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _reopen(path: Path) -> sqlite3.Connection:
    connection = connect(path)
    # A damaged text costs only that text.
    connection.text_factory = lambda text: text.decode(errors="replace")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # An acknowledged change survives a power loss.
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def create_tables(connection: sqlite3.Connection, path: str = FILE_NAME) -> None:
    """Create the tables in a database that is empty, in one transaction.

    Raises:
        StateError: it is of another version.

    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, _SCHEMA_VERSION):
        raise StateError(
            f"{path} has version {version} and this agent reads version {_SCHEMA_VERSION} only; "
            "move the state directory away, or give --state-dir an empty one"
        )
    if not version:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} {audit.SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;"
        )
