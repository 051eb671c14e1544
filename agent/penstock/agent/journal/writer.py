"""The one thread that writes: everything that is queued goes into one transaction."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from penstock.agent.errors import FullError, PenstockError, StateError
from penstock.agent.journal.transaction import Transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

_log = structlog.get_logger(__name__)

# Of what waits for the writer. A source has one batch in flight, so this is some thousand sources.
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 64 << 20
# Of one transaction, so that the first in it need not wait for all the others' work.
_MAX_GROUP = 512
_RATE_OF_ERRORS = 30.0


class Command(Protocol):
    """Something to be done inside a transaction."""

    size: int

    def run(self, transaction: Transaction) -> Any:
        """Do it; a PenstockError concerns only this command, and must come before its first write."""


def _run(command: Command, transaction: Transaction) -> Any:
    try:
        return command.run(transaction)
    except PenstockError as error:
        return error


class Writer:
    """Runs commands in the order of :meth:`put`, many in one transaction.

    *done* is called on the writer's thread after each commit (or rollback) with each command and its result, or
    its error, in order.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        done: Callable[[list[tuple[Command, Any]]], None],
    ) -> None:
        self._database = database
        self._done = done
        self._queue: deque[Command] = deque()
        self._queued_bytes = 0
        self._latest: dict[str, Callable[[Transaction], None]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._last_error_logged = 0.0
        self.watermarks: dict[int, int] = {}
        self.error = ""
        self.observe_commit: Callable[[float], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many commands wait."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """False only after :meth:`close` or a bug."""
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
                raise FullError(f"{len(self._queue)} batches wait for the disk; try again later")
            self._queue.append(command)
            self._queued_bytes += command.size
            self._changed.notify()

    def put_latest(self, name: str, write: Callable[[Transaction], None]) -> None:
        """Queue a write that replaces an earlier one of the same *name*; after close it is dropped."""
        with self._changed:
            if not self._closing:
                self._latest[name] = write
                self._changed.notify()

    def close(self) -> None:
        """Write what is queued and end; blocks. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._latest or self._closing):
                    self._changed.wait()
                group = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_GROUP))]
                self._queued_bytes -= sum(command.size for command in group)
                latest, self._latest = list(self._latest.values()), {}
                if not (group or latest):
                    break
            self._done(self._commit(group, latest))
        self._database.close()

    def _commit(
        self, group: list[Command], latest: list[Callable[[Transaction], None]]
    ) -> list[tuple[Command, Any]]:
        transaction = Transaction(self._database, self.watermarks)
        results: list[tuple[Command, Any]] = []
        begun = time.monotonic()
        try:
            self._database.execute("BEGIN IMMEDIATE")
            results.extend((command, _run(command, transaction)) for command in group)
            for write in latest:
                write(transaction)
            transaction.finish()
            self._database.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  (the thread outlives a full disk and its own bugs)
            self._report(error)
            failure = FullError(f"the journal cannot be written ({error}); try again later")
            return [(command, failure) for command in group]
        self.watermarks.update(transaction.staged)
        self.error = ""
        self.observe_commit(time.monotonic() - begun)
        return results

    def _report(self, error: Exception) -> None:
        if self._database.in_transaction:
            self._database.rollback()
        self.error = f"the journal cannot be written: {error}"
        now = time.monotonic()
        if now - self._last_error_logged > _RATE_OF_ERRORS or not self._last_error_logged:
            self._last_error_logged = now
            _log.error("journal not writable", error=str(error), error_class=type(error).__name__)
