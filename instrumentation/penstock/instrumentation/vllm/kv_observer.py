"""What one connector in a worker does, by the base interface alone: which loads begin, how long they take, what fails.

It knows no connector: the loads come with the step (``kv_moves.py``), the rest is what vLLM's runner calls and gets back.
Sync loads are timed by what the step waited for them; those of one step share that time, because nothing tells them apart.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import failures
from penstock.instrumentation.vllm.kv_moves import BrokenBlocks, KvMove, loads_of, peer_at
from penstock.instrumentation.vllm.reports import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.instrumentation.vllm.kv_moves import KvLoad

MOVES_MAX: Final = 4_096
"""Moves that wait for the scheduler's next step."""

WAITING_MAX: Final = 8_192
"""Loads in flight whose beginning is remembered."""


class KvObserver:
    """One connector in one worker; on the worker's thread.

    Attributes:
        connector: its class.

    """

    def __init__(self, connector: str, rank: int) -> None:
        """Observe the connector of that class on *rank*."""
        self.connector = connector
        self._rank = rank
        self._step: tuple[KvLoad, ...] = ()
        self._sync: tuple[KvLoad, ...] = ()
        self._start_ns = 0
        self._waited_ns = 0
        self._waiting: dict[str, tuple[KvLoad, int]] = {}
        self._began: list[tuple[str, int]] = []
        self._moves: list[KvMove] = []
        self._broken: list[BrokenBlocks] = []

    # Loads

    def starts(self, metadata: Any) -> bool:
        """Note the loads that begin with this step; tell whether the step waits for one of them."""
        self._step = loads_of(metadata)
        if not self._step:
            return False
        self._start_ns, self._waited_ns = time.time_ns(), 0
        self._sync = tuple(load for load in self._step if not load.waits)
        for load in self._step:
            if load.waits:
                if len(self._waiting) >= WAITING_MAX:
                    del self._waiting[next(iter(self._waiting))]
                self._waiting[load.request_id] = (load, self._start_ns)
                self._began.append((load.request_id, self._start_ns))
        return bool(self._sync)

    def waited(self, duration_ns: int) -> None:
        """Add to the time that this step waits for its loads."""
        self._waited_ns += duration_ns

    def finished(self, results: Any) -> None:
        """Take in what vLLM's ``get_transfer_results`` answered in this step."""
        for load in self._sync:
            self._loaded(load, self._start_ns, self._waited_ns, failed=False)
        self._step = self._sync = ()
        now = time.time_ns()
        failed: Collection[str] = results.failed_recving
        for request_id in results.finished_recving:
            waiting = self._waiting.pop(request_id, None)
            if waiting is not None:
                load, start = waiting
                self._loaded(load, start, now - start, failed=request_id in failed)
        for request_id in results.finished_sending:
            # Since when it was being sent nobody says: it may have waited for its reader.
            self.moved(KvMove(request_id, self.connector, self._rank, c.DIRECTION_SEND, now, 0))

    def broken(self, blocks: Iterable[int]) -> None:
        """Take in the blocks that the connector says were not loaded."""
        self._broken.append(BrokenBlocks(self.connector, self._rank, frozenset(blocks)))

    def raised(self, error: Exception) -> None:
        """Tell of an exception that leaves the connector, at once: the engine may not come to another step."""
        fields = failures.of_store(error, c.FAILURE_MODE_EXCEPTION).fields() | {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": c.DIRECTION_RECEIVE,
        }
        loads, self._step, self._sync = self._step, (), ()
        now = time.time_ns()
        for load in loads:
            self._waiting.pop(load.request_id, None)
            peer = peer_at(load.place, None)
            move = self._received(load, self._start_ns, now - self._start_ns, failed=True)
            emit(move, peer.address, peer.engine_id)
            told = {"peer": peer.fields(), "start_time_unix_nano": self._start_ns, "attempt": 1}
            self._emit(fields | told, load.request_id)
        if not loads:
            self._emit(fields | {"peer": peer_at("", None).fields()}, "")

    def _emit(self, fields: dict[str, Any], request_id: str) -> None:
        if runtime.active:
            runtime.emit_event(
                "transfer_failure",
                fields,
                component=c.COMPONENT_WORKER,
                rank=self._rank,
                request_id=request_id,
            )

    def _loaded(self, load: KvLoad, start_ns: int, duration_ns: int, *, failed: bool) -> None:
        self.moved(self._received(load, start_ns, duration_ns, failed=failed))

    def _received(self, load: KvLoad, start_ns: int, duration_ns: int, *, failed: bool) -> KvMove:
        return KvMove(
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

    def moved(self, move: KvMove) -> None:
        """Keep a move that has ended until the scheduler's next step."""
        if len(self._moves) >= MOVES_MAX:
            runtime.emitter.drops.add("queue_full", "transfer")
            return
        self._moves.append(move)

    # To the scheduler

    def report(self, inner: Any) -> Any:
        """Return what goes to the scheduler with this step; *inner* is the connector's own metadata.

        A connector's own is always wrapped, because the ranks' are combined and must be of one kind.
        """
        if inner is None and not (self._moves or self._began or self._broken):
            return None
        report = WorkerReport(
            began=tuple(self._began), inner=inner, moves=tuple(self._moves), broken=tuple(self._broken)
        )
        self._began, self._moves, self._broken = [], [], []
        return report


def emit(move: KvMove, peer: str, peer_engine_id: str) -> None:
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
