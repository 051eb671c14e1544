"""The durable log, as the daemon uses it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog
from penstock.agent.batch import BatchColumns
from penstock.agent.journal.agent_log import AgentLog
from penstock.agent.journal.commit import Append, Appended, Open, Retention, Usage, Writer
from penstock.agent.journal.database import (
    FILE,
    RESERVE_FILE,
    DiskReserve,
    Opened,
    WalCheckpointer,
    connect,
    journal_errors,
    limit_to,
    open_database,
)
from penstock.agent.journal.index import RequestIndex
from penstock.agent.journal.query import Reader
from penstock.agent.journal.repair import mark_damaged, replace_damaged
from penstock.agent.state import DEFAULT_LIMIT, DatabaseFiles, error_text, is_bad_state

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    from penstock.agent.journal.commit import Command
    from penstock.agent.model import Source
    from penstock.proto.v1.ingest_pb2 import Batch

    OnCommit: TypeAlias = Callable[[int, Source, BatchColumns], None]

_log = structlog.get_logger(__name__)


def _call(callback: OnCommit, batch_id: int, source: Source, contents: BatchColumns) -> None:
    try:
        callback(batch_id, source, contents)
    except Exception:  # noqa: BLE001  (the batch is committed: its sender gets the acknowledgement in any case)
        _log.exception("a callback failed on a committed batch", batch=batch_id, epoch=source.epoch)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return  # It has its result, or its caller was cancelled.
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class Journal:
    """The durable log. Its coroutines belong to one loop; the other methods may be called from any thread.

    Attributes:
        path: the database's file.
        created_unix_nano: when this state was created; counters count from there.
        agent_epoch: random identity of this state, for what the agent itself writes into the log.
        own: writes the agent's own batches.
        lost_batches: batches that were lost to damage, over all lives of this state.
        damage: a sentence, once damage is found; nothing is appended after that.
        whereabouts: watches its files and restores them if they are removed.

    """

    def __init__(self, path: Path, opened: Opened, claim: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.damage = ""
        self.own = AgentLog(self)
        database, budget = opened
        self._budget = budget
        # All that is read comes before the first thread begins.
        meta = dict(database.execute("SELECT key, value FROM meta").fetchall())
        self.created_unix_nano = int(meta["created_unix_nano"])
        self.agent_epoch = int(meta["agent_epoch"])
        self.lost_batches = int(meta.get("lost_batches", 0))
        self._on_commit: list[OnCommit] = []
        self._metrics_state = database.execute(
            "SELECT batch, body FROM folds WHERE name = 'metrics'"
        ).fetchone()
        requests = RequestIndex(database)
        self._retention = Retention(database, budget, requests)
        reserve = DiskReserve(path.with_name(RESERVE_FILE), budget.reserve)
        reserve.acquire()
        self.whereabouts = DatabaseFiles(path, self._reopen, claim)
        self._checkpointer = (
            WalCheckpointer(path, lambda: self.whereabouts.restored, long_pages=budget.checkpoint_pages // 2)
            if budget.checkpoints_beside
            else None
        )
        self._writer = Writer(
            database,
            self._done,
            retention=self._retention,
            requests=requests,
            reserve=reserve,
            group_bytes=budget.transaction,
            damaged=self._note_damage,
            settle=self.whereabouts.restore_if_moved,
            after=self._checkpointer.between_transactions
            if self._checkpointer is not None
            else lambda _: None,
        )

    @classmethod
    def open(
        cls,
        state_dir: Path,
        pod_uid: str = "",
        limit: int = DEFAULT_LIMIT,
        claim: Callable[[], None] = lambda: None,
        *,
        salvages: bool = True,
    ) -> Journal:
        """Open or create the journal in *state_dir*; its state belongs to the pod *pod_uid*, where that is known.

        All files in *state_dir* together have *limit* bytes. *claim* verifies that the directory exists and belongs to this agent.
        A damaged journal is set aside (``state.corrupt-<time>``); with *salvages* the new one starts with what can be read of it.

        Raises:
            StateError: one sentence, for a directory or a file that cannot be used.

        """
        path = state_dir / FILE
        with journal_errors(path):
            # What is there, and then what can be read of it.
            for _ in range(2):
                try:
                    return cls._attempt(state_dir, pod_uid, limit, claim, salvages=salvages)
                except Exception as error:
                    if not is_bad_state(error):
                        raise
                    mark_damaged(path, error_text(error))
            return cls._attempt(state_dir, pod_uid, limit, claim, salvages=False)

    @classmethod
    def _attempt(
        cls, state_dir: Path, pod_uid: str, limit: int, claim: Callable[[], None], *, salvages: bool
    ) -> Journal:
        path = state_dir / FILE
        replace_damaged(path, limit, salvages=salvages)
        opened = open_database(state_dir, pod_uid, limit)
        try:
            return cls(path, opened, claim)
        except BaseException:
            opened.database.close()
            raise

    def mark_damaged(self, reason: str) -> None:
        """Mark it, so that the next :meth:`open` sets it aside."""
        mark_damaged(self.path, reason)

    def on_commit(self, callback: OnCommit) -> None:
        """Call *callback* (batch id, source, batch) on the loop for each new batch.

        In log order, once per batch, and even if the caller of its :meth:`append` was cancelled.
        """
        self._on_commit.append(callback)

    def observe_commits(self, observe: Callable[[float], None]) -> None:
        """Call *observe* with the seconds that each transaction took, on the writer's thread."""
        self._writer.observe_commit = observe

    def watermark(self, epoch: int) -> int:
        """Return the committed watermark of a source that was opened; 0 for any other."""
        return self._writer.watermarks.get(epoch, 0)

    async def open_source(self, source: Source) -> int:
        """Record that *source* has connected; return its watermark, after all earlier appends.

        Raises:
            FullError: the queue or the disk is full.
            StateError: the journal is closed.

        """
        command = Open(source, asyncio.get_running_loop().create_future())
        self._writer.put(command)
        return await command.future

    async def append(
        self,
        source: Source,
        batch: Batch,
        body: bytes,
        contents: BatchColumns | None = None,
        *,
        ahead: bool = False,
    ) -> int:
        """Append a batch; returns the source's watermark once it is committed and the callbacks have run.

        Batches are appended in the order of the calls; the first one opens its source. A batch at or below the
        watermark changes nothing. *body* is the batch as it came, *contents* what was read of it already.

        With *ahead* it returns before the callbacks, which follow before the loop looks for anything that has come in
        since: a peer that gets its acknowledgement and then asks finds the batch counted.

        Raises:
            GapError: its number is not the next one.
            FullError: the queue or the disk is full; nothing was written.
            StateError: the journal is closed.

        """
        command = Append(
            source,
            contents or BatchColumns(batch),
            body,
            asyncio.get_running_loop().create_future(),
            len(body),
            ahead,
        )
        self._writer.put(command)
        return (await command.future).watermark

    def _done(self, results: list[tuple[Command, Any]]) -> None:
        """Pass the results of a transaction to the loop at once; on the writer's thread."""
        pairs = [(command, result) for command, result in results if isinstance(command, Append | Open)]
        if not pairs:
            return
        try:
            pairs[0][0].future.get_loop().call_soon_threadsafe(self._resolve, pairs)
        except RuntimeError:
            return  # The loop has ended; what is committed is committed.

    def _resolve(self, pairs: list[tuple[Append | Open, Any]]) -> None:
        for command, result in pairs:
            if isinstance(command, Append) and command.ahead:
                _settle(command.future, result)
        # Behind the tasks that wait for these: their acknowledgements leave first.
        asyncio.get_running_loop().call_soon(self._announce, pairs)

    def _announce(self, pairs: list[tuple[Append | Open, Any]]) -> None:
        """Call the callbacks for what was appended, and answer those who wait for that."""
        for command, result in pairs:
            if isinstance(command, Append) and isinstance(result, Appended) and result.batch_id:
                for callback in self._on_commit:
                    _call(callback, result.batch_id, command.source, command.contents)
            _settle(command.future, result)

    def reader(self, stopped: Callable[[], bool] = lambda: False) -> Reader:
        """Return a reader with a connection of its own, which reads no batch any more once *stopped* returns True.

        Raises:
            StateError: it cannot be read; or its files are gone and will be restored within a second.

        """
        return Reader(self.path, stopped, self.whereabouts, self._note_damage)

    def source(self, epoch: int) -> Source | None:
        """Return the source of *epoch*, None if the log does not know it.

        Raises:
            StateError: as :meth:`reader`.

        """
        with self.reader() as reader:
            return reader.source(epoch)

    def save_metrics_state(self, batch_id: int, blob: bytes) -> None:
        """Queue the state of the metrics after *batch_id*; a later call replaces one that waits."""
        self._metrics_state = (batch_id, blob)
        self._writer.put_latest(
            "metrics state", lambda transaction: transaction.save_metrics_state(batch_id, blob)
        )

    def load_metrics_state(self) -> tuple[int, bytes] | None:
        """Return the last saved state of the metrics and the last batch that it counts."""
        return (
            None
            if self._metrics_state is None
            else (int(self._metrics_state[0]), bytes(self._metrics_state[1]))
        )

    def restart_counting(self) -> None:
        """Restart counting now, because the saved counters cannot be used and the log is incomplete."""
        now = self.created_unix_nano = time.time_ns()
        self._writer.put_latest("created", lambda transaction: transaction.restart_counting(now))

    def save_cursor(self, name: str, low: int, exported: int) -> None:
        """Queue a cursor's position; a later call replaces one that waits."""
        self._writer.put_latest(
            f"cursor {name}", lambda transaction: transaction.save_cursor(name, low, exported)
        )

    @property
    def error(self) -> str:
        """Why writes fail at present; empty while they succeed."""
        return self._writer.error

    @property
    def usage(self) -> Usage:
        """Its size, its limit, and what was deleted."""
        return self._retention.usage

    @property
    def wants_metrics_state(self) -> bool:
        """Whether a save of the metrics' state would let the log be trimmed, which is at its limit."""
        return self._retention.blocked

    def _note_damage(self, text: str) -> None:
        """Record that the database is damaged; on any thread."""
        if not self.damage:
            _log.critical("the journal is damaged; the next start sets it aside", error=text)
            try:
                self.mark_damaged(text)
            except OSError as error:
                _log.warning("the journal could not be marked as damaged", error=str(error))
        self.damage = f"the journal is damaged ({text}); the next start sets it aside and continues with what can be read of it"

    @property
    def alive(self) -> bool:
        """Whether the writer's thread runs."""
        return self._writer.alive

    @property
    def depth(self) -> int:
        """How many commands wait for the writer."""
        return self._writer.depth

    async def close(self) -> None:
        """Write what is queued and close the file. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        # Before the writer: the last connection that is closed folds the write-ahead log in.
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._writer.close()
        self.whereabouts.unwatch()

    def _reopen(self, path: Path) -> sqlite3.Connection:
        """Open the restored files; on the writer's thread."""
        database = connect(path, "rw")
        try:
            limit_to(database, self._budget)
        except BaseException:
            database.close()
            raise
        return database
