"""Observes one connector in a worker through vLLM's base interface: start, duration and failure of transfers.

Sources: the loads that the scheduler sends with a step, the calls of vLLM's model runner and their results, and what a
``JobAdapter`` reads from the connector's metadata. The base interface does not tell synchronous loads of one step apart:
all have the duration of the step's wait, and so have its saves.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import LAST_WORDS_SECONDS, runtime
from penstock.instrumentation.vllm.kv.base.connector_adapters import JobTable
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
from penstock.instrumentation.vllm.progress import ConnectorCalls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.instrumentation.vllm.kv.base.connector_adapters import JobAdapter
    from penstock.instrumentation.vllm.messages import KvLoad, LoadFailureReasons, LoadReason

TRANSFERS_MAX: Final = 4_096
"""Finished transfers that wait for the scheduler's next step; more are dropped and counted."""

LOADS_IN_FLIGHT_MAX: Final = 8_192
"""Asynchronous loads whose start time is kept; the oldest is forgotten beyond that."""


class WorkerNotes(Protocol):
    """What the worker of some connectors knows beyond the base interface."""

    @property
    def reasons(self) -> LoadFailureReasons:
        """Why loads failed."""

    @property
    def expired(self) -> Collection[str]:
        """Requests whose lease ran out."""

    def on_results(self, results: Any) -> None:
        """Note what *results* say, which vLLM's ``get_transfer_results`` returned in this step."""

    def drain(self) -> tuple[tuple[LoadReason, ...], tuple[str, ...]]:
        """Return the reasons and the expired leases since the last call."""


class KvObserver:
    """The transfers of one connector in one worker. Runs on the worker's thread.

    Attributes:
        connector: the name of its class, with a number if a MultiConnector has several of it.
        calls: vLLM's calls into it.

    """

    def __init__(
        self,
        connector: str,
        rank: int,
        *,
        place: str = "",
        jobs: JobAdapter | None = None,
        notes: WorkerNotes | None = None,
    ) -> None:
        """Observe a connector.

        Args:
            connector: its name (:class:`KvObserver`).
            rank: the worker's rank in its engine.
            place: where it saves to, ``host`` or ``disk``; empty if unknown.
            jobs: reads its asynchronous transfers; None if it reports none.
            notes: what the connector's worker knows besides; None if that is nothing.

        """
        self.connector = connector
        self.calls = ConnectorCalls(connector, rank, c.CHANNEL_KV)
        self._rank = rank
        self._place = place
        self._jobs = JobTable(jobs) if jobs is not None else None
        self._notes = notes
        self._loads: tuple[KvLoad, ...] = ()
        self._start_ns = 0
        self._waited_ns = 0
        self._saves: tuple[str, ...] = ()
        self._save_start_ns = 0
        self._saved_ns = 0
        self._in_flight: dict[str, tuple[KvLoad, int]] = {}
        self._started: list[tuple[str, int]] = []
        self._finished: list[FinishedTransfer] = []
        self._broken: list[BrokenBlocks] = []
        self._looked_ns = 0

    # A step

    def has_work(self, metadata: Any) -> bool:
        """Return whether a step's *metadata* may hold transfers."""
        return self._jobs is not None or hasattr(metadata, LOADS) or hasattr(metadata, SAVES)

    def on_metadata_bound(self, metadata: Any) -> tuple[bool, bool]:
        """Read a step's *metadata*; return whether the step waits for loads, and whether it waits for saves."""
        self._loads, self._saves = loads_of(metadata), saves_of(metadata)
        if self._jobs is not None:
            self._jobs.start(metadata)
        self._waited_ns = self._saved_ns = 0
        return any(not load.waits for load in self._loads), bool(self._saves)

    def on_loads_started(self) -> None:
        """Record the start time of this step's loads."""
        if not self._loads:
            return
        self._start_ns = time.time_ns()
        for load in self._loads:
            if load.waits:
                if len(self._in_flight) >= LOADS_IN_FLIGHT_MAX:
                    del self._in_flight[next(iter(self._in_flight))]
                self._in_flight[load.request_id] = (load, self._start_ns)
                self._started.append((load.request_id, self._start_ns))

    def add_load_wait(self, duration_ns: int) -> None:
        """Add *duration_ns* to this step's wait for its loads."""
        self._waited_ns += duration_ns

    def add_save_time(self, start_ns: int, duration_ns: int) -> None:
        """Add *duration_ns* to this step's wait for its saves; *start_ns* is wall clock."""
        if not self._saved_ns:
            self._save_start_ns = start_ns
        self._saved_ns += duration_ns

    def on_saves_finished(self) -> None:
        """Queue the saves of this step as finished transfers."""
        saves, self._saves = self._saves, ()
        for request_id in saves:
            self._queue(self._sent(request_id, self._save_start_ns, self._saved_ns))

    def on_transfer_results(self, results: Any) -> None:
        """Queue the finished transfers; *results* is what vLLM's ``get_transfer_results`` returned in this step."""
        loads, self._loads = self._loads, ()
        for load in loads:
            if not load.waits:
                self._queue(self._received(load, self._start_ns, self._waited_ns))
        if self._notes is not None:
            self._notes.on_results(results)
        now = time.time_ns()
        failed: Collection[str] = results.failed_recving
        for request_id in results.finished_recving:
            waiting = self._in_flight.pop(request_id, None)
            if waiting is not None:
                load, start = waiting
                received = self._received(load, start, now - start, failed=request_id in failed)
                # The look before has found it unfinished.
                unseen = max(now - max(start, self._looked_ns), 0)
                self._queue(received._replace(uncertainty_ns=min(unseen, received.duration_ns)))
        expired = frozenset(self._notes.expired if self._notes is not None else ())
        for request_id in results.finished_sending:
            # The start of a send is unknown: it may have waited for its reader.
            self._queue(self._sent(request_id, now, 0, failed=request_id in expired))
        self._looked_ns = now

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forget loads that have ended while nothing is recorded."""
        self._loads = self._saves = ()
        for request_id in request_ids:
            self._in_flight.pop(request_id, None)

    def on_load_errors(self, blocks: Iterable[int]) -> None:
        """Queue the blocks that the connector reports as not loaded."""
        self._broken.append(BrokenBlocks(self.connector, self._rank, frozenset(blocks)))

    def on_exception(self, error: Exception, direction: int) -> None:
        """Emit an exception that leaves the connector, and flush: the engine may not reach another step."""
        now = time.time_ns()
        if direction == c.DIRECTION_RECEIVE:
            # All loads in flight end with the engine; the exception does not say which of them failed.
            begun = {load.request_id: (load, self._start_ns) for load in self._loads} | self._in_flight
            self._loads, self._in_flight = (), {}
            transfers = [
                self._received(load, start, now - start, failed=True)
                for load, start in islice(begun.values(), LOADS_MAX)
            ]
        else:
            saves, self._saves = self._saves, ()
            start = self._save_start_ns or now
            transfers = [self._sent(each, start, now - start, failed=True) for each in saves]
        fields = failure_modes.of_store(error, c.FAILURE_MODE_EXCEPTION).fields() | {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": direction,
        }
        for transfer in transfers:
            peer = peer_at(transfer.place, None)
            emit_transfer(transfer, peer.address, peer.engine_id)
            details = {
                "peer": peer.fields(),
                "start_time_unix_nano": transfer.start_ns,
                "attempt": int(transfer.loads),
            }
            self._emit_failure(fields | details, transfer.request_id)
        if not transfers:
            self._emit_failure(fields | {"peer": peer_at(self._place, None).fields()}, "")
        # vLLM kills all processes of an engine within milliseconds of an exception.
        runtime.flush(LAST_WORDS_SECONDS)

    def _emit_failure(self, fields: dict[str, Any], request_id: str) -> None:
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

    def _queue(self, transfer: FinishedTransfer) -> None:
        """Keep a finished transfer until the scheduler's next step."""
        if len(self._finished) >= TRANSFERS_MAX:
            runtime.emitter.drops.add("queue_full", "transfer")
            return
        self._finished.append(transfer)

    # To the scheduler

    @property
    def has_news(self) -> bool:
        """Whether there is anything to report to the scheduler."""
        notes = self._notes
        return bool(
            self._finished
            or self._started
            or self._broken
            or (notes is not None and (notes.reasons or notes.expired))
        )

    def report(self, inner: Any) -> Any:
        """Return the worker metadata of this step for the scheduler; *inner* is the connector's own.

        *inner* is always wrapped: vLLM aggregates the metadata of all ranks, which must have one type.
        """
        if inner is None and not self.has_news:
            return None
        if inner is not None and self._jobs is not None:
            self._add_finished_jobs(self._jobs, inner)
        reasons, expired = self._notes.drain() if self._notes is not None else ((), ())
        report = WorkerReport(
            began=tuple(self._started),
            inner=inner,
            moves=tuple(self._finished),
            broken=tuple(self._broken),
            reasons=reasons,
            expired=expired,
        )
        self._started, self._finished, self._broken = [], [], []
        return report

    def _add_finished_jobs(self, jobs: JobTable, inner: Any) -> None:
        """Queue the finished saves; set the bytes of the finished loads."""
        now, sizes = time.time_ns(), dict[str, int]()
        for job, done in jobs.finish(inner):
            if job.direction == c.DIRECTION_SEND:
                start = now - done.duration_ns
                self._queue(self._sent(job.request_id, start, done.duration_ns, size=done.bytes))
            else:
                sizes[job.request_id] = sizes.get(job.request_id, 0) + done.bytes
        if sizes:
            self._finished = [
                transfer._replace(bytes=sizes[transfer.request_id])
                if transfer.loads and transfer.request_id in sizes
                else transfer
                for transfer in self._finished
            ]


def emit_transfer(transfer: FinishedTransfer, peer: str, peer_engine_id: str) -> None:
    """Emit a finished transfer for the worker that made it; *peer* is ``host:port`` or a place."""
    if runtime.active:
        runtime.emit_transfer(
            transfer.end_ns,
            transfer.duration_ns,
            transfer.bytes,
            0,
            0,
            transfer.uncertainty_ns,
            c.CHANNEL_KV,
            transfer.direction,
            c.TRANSFER_RESULT_ERROR if transfer.failed else c.TRANSFER_RESULT_OK,
            c.COMPONENT_WORKER,
            transfer.rank,
            transfer.connector,
            peer,
            peer_engine_id,
            transfer.request_id,
        )
