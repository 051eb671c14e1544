"""Copies the write-ahead log into the database beside the writer, so that a commit need not wait for the disk.

SQLite does that inside of the commit that makes the log too long, and waits there until the disk has everything: 25 to
50 ms now and then, for all acknowledgements that are due. A passive checkpoint on a connection of its own blocks
no commit. But a writer that never pauses has committed more by its end, and SQLite begins the log again only when all of
it is copied. So from some length on the writer copies that rest, between two transactions, right after a checkpoint that
has left it little to copy and little to wait for.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import structlog
from penstock.agent.journal.database.connection import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
