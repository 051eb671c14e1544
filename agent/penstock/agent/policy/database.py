"""``policy.db``: the one SQLite file of policies, their audit log, the pauses and the orders."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.agent.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_NAME = "policy.db"
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS counter (one INTEGER PRIMARY KEY CHECK (one = 1), generation INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (1, 0);
CREATE TABLE IF NOT EXISTS policy (
  name TEXT PRIMARY KEY,
  generation INTEGER NOT NULL,
  manifest TEXT NOT NULL,
  owner TEXT NOT NULL,
  author TEXT NOT NULL,
  changed_unix_nano INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
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
CREATE INDEX IF NOT EXISTS audit_by_name ON audit (name, new_generation);
CREATE TRIGGER IF NOT EXISTS audit_is_not_edited BEFORE UPDATE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_erased BEFORE DELETE ON audit
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_replaced BEFORE INSERT ON audit
  WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TABLE IF NOT EXISTS pause (
  server TEXT NOT NULL,
  engine TEXT NOT NULL,
  paused INTEGER NOT NULL,
  PRIMARY KEY (server, engine)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS timed_order (
  number INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  document TEXT NOT NULL
);
"""


class PolicyDatabase:
    """A connection that any thread may use, one at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, state_dir: Path) -> PolicyDatabase:
        """Open ``policy.db`` below *state_dir*, or create it.

        Raises:
            StateError: it cannot be opened or is of a newer version.

        """
        path = state_dir / FILE_NAME
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        except sqlite3.Error as error:
            raise StateError(f"{path} cannot be opened ({error}); see to --state-dir") from error
        try:
            _check_version(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            # An acknowledged change survives the loss of power, too.
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;"
            )
            path.chmod(0o600)
        except (sqlite3.Error, OSError) as error:
            connection.close()
            raise StateError(f"{path} cannot be used ({error}); see to --state-dir") from error
        except StateError:
            connection.close()
            raise
        return cls(connection)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write: commit at the end, roll back on an error.

        Raises:
            StateError: SQLite refused (a full or broken disk).

        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise StateError(
                    f"{FILE_NAME} cannot be written ({error}); see to the disk of --state-dir"
                ) from error
            except BaseException:
                self._roll_back()
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read, while nobody writes.

        Raises:
            StateError: SQLite refused.

        """
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StateError(
                    f"{FILE_NAME} cannot be read ({error}); see to the disk of --state-dir"
                ) from error

    def close(self) -> None:
        """Close it; again is fine."""
        with self._lock:
            self._connection.close()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _SCHEMA_VERSION:
        raise StateError(
            f"{path} has version {version} but this agent knows {_SCHEMA_VERSION}; run a newer agent"
        )
