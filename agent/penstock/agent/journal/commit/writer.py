"""The writer thread: runs all queued commands in one transaction."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.errors import FullError, PenstockError, StateError
from penstock.agent.journal.commit.transaction import Transaction, probe, run_command
from penstock.agent.state import is_damage

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.journal.commit.retention import Retention
    from penstock.agent.journal.commit.transaction import Command, Write
    from penstock.agent.journal.database import DiskReserve
    from penstock.agent.journal.index import RequestIndex

_log = structlog.get_logger(__name__)

# Commands, and their bytes, that wait for the writer. A source has one batch in flight, so this is some thousand sources.
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 64 << 20
# Commands of one transaction, so that the first in it need not wait for all the others' work.
_MAX_GROUP = 512
# Seconds from the beginning of a transaction to that of the next: each has a cost of its own, as large as that of ten small
# batches. One source, which waits for its acknowledgement, never comes so soon.
_APART_SECONDS = 0.003
# Seconds between two lines of the log about the same error: a full disk lasts.
_RATE_OF_ERRORS = 30.0
# Seconds between two writes that are tried without a request while nothing can be written.
_PROBE_SECONDS = 2.0
# Seconds between two looks whether the files are still there, while nothing is written.
_CHECK_SECONDS = 1.0
# SQLite's primary result codes: a write of the system's failed, the disk is full.
_IO_ERROR, _FULL = 10, 13


class Writer:
    """Runs commands in the order of :meth:`put`, many in one transaction.

    *done* is called on the writer's thread after each commit (or rollback) with each command and its result, or
    its error, in order. *damaged* is called on it when the database turns out to be damaged, *after*, with the connection,
    when the results of a transaction have been handed on; it may wait. *settle* is called on it before each transaction, and once a second:
    it returns the connection to write with, *database* as long as that is still where it was.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        done: Callable[[list[tuple[Command, Any]]], None],
        *,
        retention: Retention,
        requests: RequestIndex,
        reserve: DiskReserve,
        group_bytes: int,
        damaged: Callable[[str], None],
        settle: Callable[[sqlite3.Connection], sqlite3.Connection] = lambda database: database,
        after: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._done = done
        self._retention = retention
        self._requests = requests
        self._reserve = reserve
        self._group_bytes = group_bytes
        self._damaged = damaged
        self._settle = settle
        self._after = after
        self._queue: deque[Command] = deque()
        self._queued_bytes = 0
        self._latest: dict[str, Write] = {}
        self._fresh = False
        self._changed = threading.Condition()
        self._closing = False
        # The limit may be lower than it was.
        self._trimming = True
        self._last_error_logged = 0.0
        self.watermarks: dict[int, int] = {}
        self.error = ""
        self.observe_commit: Callable[[float], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Number of queued commands."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether the thread runs; False only after :meth:`close` or a bug."""
        return self._thread.is_alive()

    def put(self, command: Command) -> None:
        """Queue *command*; from any thread.

        Raises:
            FullError: too much waits already.
            StateError: the journal is closed.

        """
        with self._changed:
            if self._closing:
                raise StateError("the journal is closed")
            if len(self._queue) >= MAX_QUEUED or self._queued_bytes + command.size > MAX_QUEUED_BYTES:
                raise FullError(f"{len(self._queue)} batches wait for the disk; retry later")
            self._queue.append(command)
            self._queued_bytes += command.size
            self._changed.notify()

    def put_latest(self, name: str, write: Write) -> None:
        """Queue a write that replaces an earlier one of the same *name*; after close it is dropped."""
        with self._changed:
            if not self._closing:
                self._latest[name] = write
                self._fresh = True
                self._changed.notify()

    def close(self) -> None:
        """Write what is queued and end; blocks. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        if not self._reserve.held:
            # The disk is full already: what is left of it is for making room first.
            self._use_reserve({})
        while True:
            with self._changed:
                self._wait()
                group = self._group()
                latest, self._latest = self._latest, {}
                last = self._closing and not self._queue
                if last and not (group or latest):
                    break
            begun = time.monotonic()
            self._done(self._settled(group, latest))
            self._after(self._database)
            self._trim(group)
            if last:
                break
            # What comes meanwhile shares the next transaction.
            time.sleep(max(0.0, begun + _APART_SECONDS - time.monotonic()))
        self._database.close()

    def _wait(self) -> None:
        """Wait for work; what failed before is retried after a pause."""
        self._changed.wait_for(
            lambda: self._queue or self._fresh or self._closing or self._trimming,
            _PROBE_SECONDS if self.error else _CHECK_SECONDS,
        )
        self._fresh = False
        if self.error:
            self._latest.setdefault("probe", probe)

    def _group(self) -> list[Command]:
        group: list[Command] = []
        size = 0
        while self._queue and len(group) < _MAX_GROUP:
            size += self._queue[0].size
            if group and size > self._group_bytes:
                break
            group.append(self._queue.popleft())
        self._queued_bytes -= sum(command.size for command in group)
        return group

    def _settled(self, group: list[Command], latest: dict[str, Write]) -> list[tuple[Command, Any]]:
        """Commit, after restoring files that were removed."""
        try:
            database = self._settle(self._database)
        except PenstockError as error:
            self._keep(latest)
            return self._refuse(group, error)
        if database is not self._database:
            self._database = database
            self._retention.set_connection(database)
            self._requests.set_connection(database)
        return self._commit(group, latest)

    def _keep(self, latest: dict[str, Write]) -> None:
        """Retry these the next time, unless newer ones replace them."""
        with self._changed:
            self._latest = {**latest, **self._latest}

    def _commit(self, group: list[Command], latest: dict[str, Write]) -> list[tuple[Command, Any]]:
        if group and self._retention.full:
            # The saved metrics may be what is missing for the log to be trimmed.
            self._commit([], latest)
            return self._refuse(group, FullError("its limit is reached, see --state-limit"))
        if not (group or latest):
            return []
        try:
            results = self._write(group, latest)
        except Exception as error:  # noqa: BLE001  (the thread outlives a full disk and its own bugs)
            return self._failed(group, latest, error)
        self.error = ""
        return results

    def _write(self, group: list[Command], latest: dict[str, Write]) -> list[tuple[Command, Any]]:
        transaction = Transaction(self._database, self.watermarks)
        begun = time.monotonic()
        try:
            self._database.execute("BEGIN IMMEDIATE")
            results = [(command, run_command(command, transaction)) for command in group]
            for write in latest.values():
                write(transaction)
            transaction.finish()
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.rollback()
            raise
        self._retention.opened(transaction.opened)
        self._requests.added(transaction.last, transaction.keys)
        self.watermarks.update(transaction.staged)
        self.observe_commit(time.monotonic() - begun)
        return results

    def _failed(
        self, group: list[Command], latest: dict[str, Write], error: Exception
    ) -> list[tuple[Command, Any]]:
        if not isinstance(error, sqlite3.Error) and len(group) > 1:
            # A bug of ours about one of them: the others need not suffer.
            return [result for command in group for result in self._commit([command], latest)]
        if is_damage(error):
            self._damaged(str(error))
        elif self._make_room(latest, error):
            try:
                results = self._write(group, {})
            except Exception as again:  # noqa: BLE001  (the thread outlives a full disk and its own bugs)
                error = again
            else:
                self.error = ""
                return results
        self._keep(latest)
        return self._refuse(group, error)

    def _refuse(self, group: list[Command], error: Exception) -> list[tuple[Command, Any]]:
        self._report(error)
        failure = FullError(f"the journal cannot be written ({error}); retry later")
        return [(command, failure) for command in group]

    def _make_room(self, latest: dict[str, Write], error: Exception) -> bool:
        """On a full disk, delete some of the oldest batches; True if a retry may succeed."""
        if not isinstance(error, sqlite3.Error) or error.sqlite_errorcode & 0xFF not in (_IO_ERROR, _FULL):
            return False
        return self._use_reserve(latest)

    def _use_reserve(self, latest: dict[str, Write]) -> bool:
        """Delete old batches within the reserve's space; True if there is room now."""
        self._reserve.release()
        try:
            made = self._restart_log()
            self._write([], latest)
            made = self._retention.make_room() or made
            made = self._restart_log() or made
        except Exception as error:  # noqa: BLE001  (the thread outlives a full disk and its own bugs)
            _log.info("no space could be freed in the journal", error=str(error))
            made = False
        self._reserve.acquire()
        return made

    def _restart_log(self) -> bool:
        """Checkpoint and restart the write-ahead log; True if that succeeded."""
        busy, pages, _ = self._database.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        return not busy and pages > 0

    def _trim(self, group: list[Command]) -> None:
        """Keep the log within its budget and its index in order, a little after each commit: acknowledgements come first."""
        if self.error and not self._retention.full:
            self._trimming = False
            return
        try:
            trimming = self._retention.step(len(group), sum(command.size for command in group))
            self._trimming = self._requests.step() or trimming
            for epoch in self._retention.forget_sources():
                self.watermarks.pop(epoch, None)
            if not self._reserve.held:
                self._reserve.acquire()
        except Exception as error:  # noqa: BLE001  (the thread outlives a full disk and its own bugs)
            self._trimming = False
            if is_damage(error):
                self._damaged(str(error))
            self._report(error)

    def _report(self, error: Exception) -> None:
        self.error = f"the journal cannot be written: {error}"
        now = time.monotonic()
        if now - self._last_error_logged > _RATE_OF_ERRORS or not self._last_error_logged:
            self._last_error_logged = now
            _log.error("journal not writable", error=str(error), error_class=type(error).__name__)
