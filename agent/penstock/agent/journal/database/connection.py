"""Connections to the journal's database, and the mapping of its errors."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError, UnwritableError
from penstock.agent.state import DamagedError, is_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.agent.state import Budget

_log = structlog.get_logger(__name__)

# Seconds between two checkpoints: of a busy log, some megabytes.
_SECONDS = 0.5
# Seconds: The writer goes on beside a checkpoint for so long; beside a longer one the write-ahead log would grow too much.
_PATIENCE_SECONDS = 0.25


class WalCheckpointer:
    """A thread that makes a checkpoint twice a second while something is written.

    An error of the disk is no matter of its own: the writer meets it, too, and deals with it.

    Args:
        path: of the database.
        restored: how often its files were put back; after that it is opened again.
        long_pages: pages of a write-ahead log that is to begin again.

    """

    def __init__(
        self, path: Path, restored: Callable[[], int] = lambda: 0, *, long_pages: int = sys.maxsize
    ) -> None:
        self._path = path
        self._restored = restored
        self._long_pages = long_pages
        # A checkpoint of a long log has ended, and the writer has not copied the rest yet.
        self._rest_is_left = False
        self._ending = threading.Event()
        self._turn = threading.Lock()
        # When the checkpoint that is under way began; infinity between two.
        self._begun = float("inf")
        self._thread = threading.Thread(target=self._run, name="penstock-checkpoint", daemon=True)
        self._thread.start()

    def between_transactions(self, database: sqlite3.Connection) -> None:
        """Wait for a slow checkpoint to end, and copy the rest of a long log; called by the writer, with its connection."""
        if time.monotonic() - self._begun > _PATIENCE_SECONDS:
            with self._turn:
                pass
        if self._rest_is_left:
            self._rest_is_left = False
            try:
                _checkpoint(database)
            except sqlite3.Error as error:
                _log.debug("the rest of the log is left to the next commit", error=str(error))

    def close(self) -> None:
        """Stop; blocks until a running checkpoint is done. Idempotent."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            restored = self._restored()
            try:
                database = connect(self._path, "rw")
            except sqlite3.Error as error:
                _log.debug("checkpoints are left to the writer", error=str(error))
                self._ending.wait(_SECONDS)
                continue
            with closing(database):
                self._keep(database, restored)

    def _keep(self, database: sqlite3.Connection, restored: int) -> None:
        seen = 0
        while not self._ending.wait(_SECONDS) and self._restored() == restored:
            try:
                # Changes when another connection has committed.
                (version,) = database.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    self._copy(database)
                    seen = version
            except sqlite3.Error as error:
                _log.debug("no checkpoint", error=str(error))

    def _copy(self, database: sqlite3.Connection) -> None:
        with self._turn:
            self._begun = time.monotonic()
            try:
                self._rest_is_left = _checkpoint(database) >= self._long_pages
            finally:
                self._begun = float("inf")


def _checkpoint(database: sqlite3.Connection) -> int:
    """Copy what can be copied without waiting for another connection; return the log's length in pages."""
    _busy, pages, _copied = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)


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
