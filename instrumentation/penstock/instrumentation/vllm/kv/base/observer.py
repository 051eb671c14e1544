"""What one connector in a worker does, by the base interface: what begins, how long it takes, what fails.

It knows no connector: the loads come with the step (``kv_moves.py``), the rest is what vLLM's runner calls and gets back,
and what a dialect makes of the connector's own metadata. What a step waits for is timed by that wait; the loads of one
step share it, and so do its saves, because nothing tells them apart.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import LAST_WORDS_SECONDS, runtime
from penstock.instrumentation.vllm.kv.base.kv_jobs import JobTable
from penstock.instrumentation.vllm.messages import (
    LOADS,
    LOADS_MAX,
    SAVES,
    BrokenBlocks,
    FinishedTransfer,
    WorkerReport,
    loads_of,
    peer_at,
    saves_of,
)
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.instrumentation.vllm.kv.base.connector_adapters import JobAdapter
    from penstock.instrumentation.vllm.messages import KvLoad, LoadFailureReasons

MOVES_MAX: Final = 4_096
"""Moves that wait for the scheduler's next step."""

WAITING_MAX: Final = 8_192
"""Loads in flight whose beginning is remembered."""


class KvObserver:
    """One connector in one worker; on the worker's thread.

    Attributes:
        connector: its class.

    """

    def __init__(
        self,
        connector: str,
        rank: int,
        *,
        place: str = "",
        jobs: JobAdapter | None = None,
        reasons: LoadFailureReasons | None = None,
    ) -> None:
        """Observe the connector of that class on *rank*.

        Args:
            connector: the class.
            rank: the worker's.
            place: where it saves to, ``host`` or ``disk``; empty where it does not say.
            jobs: how it names what it does beside the steps, if it does.
            reasons: why its loads have failed, if it says so.

        """
        self.connector = connector
        self._rank = rank
        self._place = place
        self._jobs = JobTable(jobs) if jobs is not None else None
        self._reasons = reasons
        self._loads: tuple[KvLoad, ...] = ()
        self._start_ns = 0
        self._waited_ns = 0
        self._saves: tuple[str, ...] = ()
        self._save_start_ns = 0
        self._saved_ns = 0
        self._waiting: dict[str, tuple[KvLoad, int]] = {}
        self._began: list[tuple[str, int]] = []
        self._moves: list[FinishedTransfer] = []
        self._broken: list[BrokenBlocks] = []

    # A step

    def concerns(self, metadata: Any) -> bool:
        """Tell whether there is anything in a step's *metadata* to take in."""
        return self._jobs is not None or hasattr(metadata, LOADS) or hasattr(metadata, SAVES)

    def bound(self, metadata: Any) -> tuple[bool, bool]:
        """Take in a step's *metadata*; tell whether the step waits for loads, and whether for saves."""
        self._loads, self._saves = loads_of(metadata), saves_of(metadata)
        if self._jobs is not None:
            self._jobs.begin(metadata)
        self._waited_ns = self._saved_ns = 0
        return any(not load.waits for load in self._loads), bool(self._saves)

    def starts(self) -> None:
        """Note that the loads of this step begin."""
        if not self._loads:
            return
        self._start_ns = time.time_ns()
        for load in self._loads:
            if load.waits:
                if len(self._waiting) >= WAITING_MAX:
                    del self._waiting[next(iter(self._waiting))]
                self._waiting[load.request_id] = (load, self._start_ns)
                self._began.append((load.request_id, self._start_ns))

    def waited(self, duration_ns: int) -> None:
        """Add to the time that this step waits for its loads."""
        self._waited_ns += duration_ns

    def saved(self, start_ns: int, duration_ns: int) -> None:
        """Add to the time that this step waits for its saves; *start_ns* is wall clock."""
        if not self._saved_ns:
            self._save_start_ns = start_ns
        self._saved_ns += duration_ns

    def save_ended(self) -> None:
        """Note that the saves of this step are done."""
        saves, self._saves = self._saves, ()
        for request_id in saves:
            self._move(self._sent(request_id, self._save_start_ns, self._saved_ns))

    def finished(self, results: Any) -> None:
        """Take in what vLLM's ``get_transfer_results`` answered in this step."""
        loads, self._loads = self._loads, ()
        for load in loads:
            if not load.waits:
                self._move(self._received(load, self._start_ns, self._waited_ns))
        now = time.time_ns()
        failed: Collection[str] = results.failed_recving
        for request_id in results.finished_recving:
            waiting = self._waiting.pop(request_id, None)
            if waiting is not None:
                load, start = waiting
                self._move(self._received(load, start, now - start, failed=request_id in failed))
        for request_id in results.finished_sending:
            # Since when it was being sent nobody says: it may have waited for its reader.
            self._move(self._sent(request_id, now, 0))

    def broken(self, blocks: Iterable[int]) -> None:
        """Take in the blocks that the connector says were not loaded."""
        self._broken.append(BrokenBlocks(self.connector, self._rank, frozenset(blocks)))

    def raised(self, error: Exception, direction: int) -> None:
        """Tell of an exception that leaves the connector, at once: the engine may not come to another step."""
        now = time.time_ns()
        if direction == c.DIRECTION_RECEIVE:
            # Those in flight go down with the engine; which of them it was that failed nobody says.
            begun = {load.request_id: (load, self._start_ns) for load in self._loads} | self._waiting
            self._loads, self._waiting = (), {}
            moves = [
                self._received(load, start, now - start, failed=True)
                for load, start in islice(begun.values(), LOADS_MAX)
            ]
        else:
            saves, self._saves = self._saves, ()
            start = self._save_start_ns or now
            moves = [self._sent(each, start, now - start, failed=True) for each in saves]
        fields = failure_modes.of_store(error, c.FAILURE_MODE_EXCEPTION).fields() | {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": direction,
        }
        for move in moves:
            peer = peer_at(move.place, None)
            emit(move, peer.address, peer.engine_id)
            told = {"peer": peer.fields(), "start_time_unix_nano": move.start_ns, "attempt": int(move.loads)}
            self._emit(fields | told, move.request_id)
        if not moves:
            self._emit(fields | {"peer": peer_at(self._place, None).fields()}, "")
        # vLLM kills all processes of an engine that raises, within milliseconds.
        runtime.flush(LAST_WORDS_SECONDS)

    def _emit(self, fields: dict[str, Any], request_id: str) -> None:
        if runtime.active:
            runtime.emit_event(
                "transfer_failure",
                fields,
                component=c.COMPONENT_WORKER,
                rank=self._rank,
                request_id=request_id,
            )

    def _received(
        self, load: KvLoad, start_ns: int, duration_ns: int, *, failed: bool = False
    ) -> FinishedTransfer:
        return FinishedTransfer(
            load.request_id,
            self.connector,
            self._rank,
            c.DIRECTION_RECEIVE,
            start_ns,
            max(duration_ns, 1),
            failed=failed,
            waits=load.waits,
            place=load.place,
        )

    def _sent(
        self, request_id: str, start_ns: int, duration_ns: int, *, size: int = 0, failed: bool = False
    ) -> FinishedTransfer:
        return FinishedTransfer(
            request_id,
            self.connector,
            self._rank,
            c.DIRECTION_SEND,
            start_ns,
            max(duration_ns, 0),
            size,
            failed=failed,
            place=self._place,
        )

    def _move(self, move: FinishedTransfer) -> None:
        """Keep a move that has ended until the scheduler's next step."""
        if len(self._moves) >= MOVES_MAX:
            runtime.emitter.drops.add("queue_full", "transfer")
            return
        self._moves.append(move)

    # To the scheduler

    @property
    def has_news(self) -> bool:
        """Whether there is something to report."""
        return bool(self._moves or self._began or self._broken or self._reasons)

    def report(self, inner: Any) -> Any:
        """Return what goes to the scheduler with this step; *inner* is the connector's own metadata.

        A connector's own is always wrapped, because the ranks' are combined and must be of one kind.
        """
        if inner is None and not self.has_news:
            return None
        if inner is not None and self._jobs is not None:
            self._take_jobs(self._jobs, inner)
        report = WorkerReport(
            began=tuple(self._began),
            inner=inner,
            moves=tuple(self._moves),
            broken=tuple(self._broken),
            reasons=self._reasons.drain() if self._reasons is not None else (),
        )
        self._began, self._moves, self._broken = [], [], []
        return report

    def _take_jobs(self, jobs: JobTable, inner: Any) -> None:
        """Add the saves that have ended, and to the loads that have ended their bytes."""
        now, sizes = time.time_ns(), dict[str, int]()
        for job, done in jobs.end(inner):
            if job.direction == c.DIRECTION_SEND:
                start = now - done.duration_ns
                self._move(self._sent(job.request_id, start, done.duration_ns, size=done.bytes))
            else:
                sizes[job.request_id] = sizes.get(job.request_id, 0) + done.bytes
        if sizes:
            self._moves = [
                move._replace(bytes=sizes[move.request_id])
                if move.loads and move.request_id in sizes
                else move
                for move in self._moves
            ]


def emit(move: FinishedTransfer, peer: str, peer_engine_id: str) -> None:
    """Emit a move as a transfer of the worker that made it."""
    if runtime.active:
        runtime.emit_transfer(
            move.end_ns,
            move.duration_ns,
            move.bytes,
            0,
            0,
            c.CHANNEL_KV,
            move.direction,
            c.TRANSFER_RESULT_ERROR if move.failed else c.TRANSFER_RESULT_OK,
            c.COMPONENT_WORKER,
            move.rank,
            move.connector,
            peer,
            peer_engine_id,
            move.request_id,
        )
