"""Failed attempts of one NIXL worker: emits each failure once, with its peer, size and cause, and tells the scheduler.

Beside them the two things that follow a failed load until it is finished: its pinned blocks, and the mark of a rehearsal. What a
worker does well, leases and late reads: ``observer.py``.

vLLM calls from several threads: the worker's (polling, posting), the handshakes' and, in push mode, the writer's. Shared
state is held in deques and in dicts, whose single operations are atomic.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import awaits_blocks, counts_transfers_alone, transfer_mode
from penstock.instrumentation.vllm.kv.nixl.cancellation import Cancellations
from penstock.instrumentation.vllm.kv.nixl.failure_attribution import attribute_wait
from penstock.instrumentation.vllm.kv.nixl.fault_injection import FaultInjection
from penstock.instrumentation.vllm.kv.nixl.handshake_table import HandshakeTable, attribute_shared
from penstock.instrumentation.vllm.kv.nixl.transfer_table import (
    NO_PLAN,
    CallContext,
    PlannedTransfer,
    TransferTable,
    bytes_of_blocks,
)
from penstock.instrumentation.vllm.kv.nixl.upstream_counts import TRANSFERS, UpstreamCounts
from penstock.instrumentation.vllm.messages import LoadFailure
from penstock.instrumentation.vllm.naming import Peer, peers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.kv.nixl.failure_attribution import FailureAttribution, HandshakeWait
    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake
    from penstock.instrumentation.vllm.naming import Failure

PENDING: Final = 1_024
"""Reports that wait for the scheduler's next step; an idle engine has no steps."""

REMEMBERED: Final = 8_192
"""Requests whose first transfer or failure is kept until they are finished."""

# vLLM logs these for each handle, and again at every poll until the handle is released.
_REPEATED: Final = frozenset(
    {
        c.FAILURE_MODE_SETUP,
        c.FAILURE_MODE_TRANSFER,
        c.FAILURE_MODE_EXCEPTION,
        c.FAILURE_MODE_TIMEOUT,
        c.FAILURE_MODE_RELEASE,
    }
)

# These do not fail a request: its KV has arrived or belongs to another request.
_HARMLESS: Final = frozenset({c.FAILURE_MODE_NOTIFICATION, c.FAILURE_MODE_RELEASE})

_LOAD: Final = "load"
_RELEASE: Final = "release"


class Mismatch(NamedTuple):
    """Blocks that were compared with the sender's digest and those that differ; *used*: the load goes on all the same."""

    compared: int
    mismatched: int
    used: bool


class NixlAttemptFailures:
    """The failed attempts of one NIXL worker.

    Attributes:
        name: of its contribution to the snapshot.
        connector: the connector's name in vLLM's configuration.
        rank: of the worker in its engine.
        push: peers write; else this worker reads.
        context: what vLLM is doing on the calling thread.
        faults: fault drills.
        cancellations: loads that the scheduler has cancelled.
        counts: vLLM's own counters of what is emitted here.

    """

    def __init__(self, worker: Any, *, name: str) -> None:
        """Observe *worker*, a NIXL worker built by vLLM."""
        self.name = name
        self.connector = str(worker.kv_transfer_config.kv_connector)
        self.rank: int = worker.vllm_config.parallel_config.rank
        self.push = transfer_mode(worker) == "push"
        self.context = CallContext()
        self.handshakes = HandshakeTable()
        self.transfers = TransferTable()
        self.faults = FaultInjection()
        self.cancellations = Cancellations(push=self.push)
        self.counts = UpstreamCounts(
            runtime.interruptions if runtime.active else None,
            incomparable=() if counts_transfers_alone(worker) else (TRANSFERS,),
        )
        self._worker = weakref.ref(worker)
        self._emitted: dict[str, dict[str, object]] = {}
        self._started_ns: dict[str, int] = {}
        self._pinned: dict[str, dict[str, Any]] = {}
        self._rehearsed: dict[str, None] = {}
        self._failures: deque[LoadFailure] = deque(maxlen=PENDING)
        self._stuck: deque[str] = deque(maxlen=PENDING)

    def on_failure(
        self,
        failure: Failure,
        request_id: str,
        *,
        meta: Any = None,
        direction: int = 0,
        context: Mapping[str, Any] | None = None,
        waited: HandshakeWait | None = None,
        mismatch: Mismatch | None = None,
        given_up: bool = False,
    ) -> None:
        """Emit a failure; of a load the first only, of other transfers once if vLLM repeats it.

        Args:
            failure: its classification.
            request_id: vLLM's internal id; empty if it concerns no request.
            meta: vLLM's ReqMeta of the load.
            direction: ``DIRECTION_*``; 0 for the direction of this worker's transfers.
            context: the keyword arguments of vLLM's failure log.
            waited: the wait of a cancelled load for its start.
            mismatch: what has arrived differs from the sender's digest.
            given_up: by order of a reflex.

        """
        awaited = meta is not None and awaits_blocks(meta)
        ends_load = awaited and failure.mode not in _HARMLESS and not (mismatch and mismatch.used)
        if awaited:
            direction = c.DIRECTION_RECEIVE
        if request_id and (ends_load or failure.mode in _REPEATED):
            kind = _LOAD if ends_load or failure.mode != c.FAILURE_MODE_RELEASE else _RELEASE
            if not self._is_first(request_id, kind):
                return
        context, plan = context or {}, self._current_plan(request_id)
        peer, shared = self._peer_and_handshake(failure, meta, context, plan)
        attribution = _attribute(failure, request_id, peer, shared, waited)
        rehearsal = failure.rehearsal or any(each and each.rehearsal for each in (shared, attribution))
        if rehearsal and request_id:
            self.mark_rehearsal(request_id)
        mode = failure.mode if attribution is None else c.FAILURE_MODE_COLLATERAL
        fields = failure.fields() | self._affected(meta, plan)
        fields |= {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": direction or (c.DIRECTION_SEND if self.push else c.DIRECTION_RECEIVE),
            "mode": mode,
            "peer": peer.fields(_rank(context.get("remote_rank", plan.rank))),
            "attempt": 1 if awaited else 0,
            "handshake_id": shared.id if shared is not None else 0,
            "start_time_unix_nano": self._start_ns(request_id, shared, waited),
        }
        if attribution is not None:
            fields |= attribution.fields()
        if mismatch is not None:
            fields |= mismatch._asdict()
        self.emit("transfer_failure", fields, request_id, rehearsal=rehearsal)
        if ends_load:
            culprit = None if attribution is None or given_up else attribution.culprit
            rehearsed = self._is_rehearsed(request_id)
            self._report_to_scheduler(
                LoadFailure(
                    request_id, mode, failure.error_type, peer, self.rank, rehearsed, culprit, given_up
                )
            )

    def _start_ns(self, request_id: str, shared: Handshake | None, waited: HandshakeWait | None) -> int:
        """Return the start of the failed operation, wall clock in nanoseconds; 0 if unknown."""
        if shared is not None:
            return shared.queued_ns
        return self._started_ns.get(request_id, 0) if waited is None else waited.since_ns

    def _report_to_scheduler(self, failure: LoadFailure) -> None:
        if len(self._failures) == PENDING:
            runtime.emitter.drops.add("queue_full", "load_failure")
        self._failures.append(failure)

    def _peer_and_handshake(
        self, failure: Failure, meta: Any, context: Mapping[str, Any], plan: PlannedTransfer
    ) -> tuple[Peer, Handshake | None]:
        peer = self.peer_of(meta, context) if meta is not None or context else plan.peer
        peer = peer if peer != Peer() else plan.peer
        if failure.mode != c.FAILURE_MODE_HANDSHAKE:
            return peer, None
        ending = self.context.handshake
        if ending is not None and (peer == Peer() or ending.peer.engine_id == peer.engine_id):
            # vLLM is failing the requests that waited for it; a push names neither peer nor engine.
            return (ending.peer if peer == Peer() else peer), ending
        return peer, self.handshakes.last(peer.engine_id)

    def peer_of(self, meta: Any, context: Mapping[str, Any]) -> Peer:
        """Return the peer named by a load or by vLLM's *context*, with the address of its last handshake.

        Of a load from an engine that vLLM knows by another address than the request names, it is the known one.
        """
        remote = getattr(meta, "remote", None)
        engine_id = peers.identifier(context.get("dst_engine_id") or context.get("remote_engine_id"))
        if remote is not None:
            named = peers.named(remote.host, remote.port, remote.engine_id)
            if named.address != peers.UNKNOWN:
                return self._known(named)
            engine_id = engine_id or named.engine_id
        last = self.handshakes.last(engine_id)
        return last.peer if last is not None else Peer(engine_id=engine_id)

    def _known(self, named: Peer) -> Peer:
        """Return the peer that vLLM knows by the engine id of *named*, whatever its address; *named* if it knows none."""
        last, worker = self.handshakes.last(named.engine_id), self._worker()
        if last is None or worker is None or last.peer.address in (named.address, peers.UNKNOWN):
            return named
        return last.peer if named.engine_id in worker._remote_agents else named

    def peer_of_agent(self, agent_name: str) -> Peer:
        """Return the peer of a NIXL agent, by vLLM's tables."""
        worker = self._worker()
        for engine_id, agents in worker._remote_agents.copy().items() if worker is not None else ():
            if agent_name in agents.values():
                return self.peer_of(None, {"remote_engine_id": engine_id})
        return Peer()

    def set_current(self, handle: Any) -> None:
        """Make the transfer of *handle* the current one of this thread: vLLM reports its failure next."""
        self.context.transfer = self.transfers.plan_of(handle)

    def _current_plan(self, request_id: str) -> PlannedTransfer:
        """Return the current transfer of this thread, if it is the request's."""
        plan = self.context.transfer
        return plan if plan.request_id == request_id else NO_PLAN

    def _affected(self, meta: Any, plan: PlannedTransfer) -> dict[str, Any]:
        """Return the fields of the affected blocks and bytes: of the load, or of the current transfer."""
        if meta is None:
            return {"blocks": plan.blocks, "bytes": plan.size} if plan.blocks else {}
        fields: dict[str, Any] = {"blocks": sum(len(group) for group in meta.local_block_ids)}
        size = bytes_of_blocks(self._worker(), meta.local_physical_block_ids)
        if size is not None:
            fields["bytes"] = size
        remote = meta.remote
        fields["remote_request_id"] = peers.identifier(remote.request_id) if remote is not None else ""
        return fields

    def _is_first(self, request_id: str, kind: str) -> bool:
        """Return whether *kind* of a request's failures was not emitted before. Thread-safe: one caller wins."""
        emitted = self._emitted.get(request_id)
        if emitted is None:
            make_room(self._emitted)
            emitted = self._emitted.setdefault(request_id, {})
        marker = object()
        return emitted.setdefault(kind, marker) is marker

    # Pinned blocks

    def on_blocks_pinned(self, request_id: str, meta: Any) -> bool:
        """Emit, once, that the blocks of a cancelled load stay pinned: the peer may still write to them."""
        if request_id in self._pinned:
            return False
        make_room(self._pinned)
        fields = {
            "channel": c.CHANNEL_KV,
            "peer": self.peer_of(meta, {}).fields(),
            "blocks": sum(len(group) for group in meta.local_block_ids),
            "since_time_unix_nano": time.time_ns(),
        }
        self._pinned[request_id] = fields
        self._stuck.append(request_id)
        self.emit("blocks_pinned", dict(fields), request_id)
        return True

    def pinned_blocks(self) -> list[dict[str, Any]]:
        """Return the fields of ``BlocksPinned`` of each load whose blocks are pinned now, from any thread."""
        return list(self._pinned.copy().values())

    # Rehearsals

    def mark_rehearsal(self, request_id: str) -> None:
        """Mark a request as hit by a drill: its later events are rehearsals too."""
        make_room(self._rehearsed)
        self._rehearsed[request_id] = None

    def _is_rehearsed(self, request_id: str) -> bool:
        return request_id in self._rehearsed

    def emit(self, kind: str, fields: dict[str, Any], request_id: str, *, rehearsal: bool = False) -> None:
        """Emit an event of this worker; events of a request hit by a drill are rehearsals."""
        if runtime.active:
            runtime.emit_event(
                kind,
                fields,
                component=c.COMPONENT_WORKER,
                rank=self.rank,
                request_id=request_id,
                rehearsal=rehearsal or self._is_rehearsed(request_id),
            )

    def forget(self, request_id: str) -> None:
        """Forget a finished request; emit the release of its blocks if they were pinned."""
        fields = self._pinned.pop(request_id, None)
        if fields is not None:
            self.emit("blocks_pinned", fields | {"released": True}, request_id)
        self.cancellations.forget(request_id)
        self.handshakes.forget(request_id)
        self._emitted.pop(request_id, None)
        self._rehearsed.pop(request_id, None)


def _attribute(
    failure: Failure, request_id: str, peer: Peer, shared: Handshake | None, waited: HandshakeWait | None
) -> FailureAttribution | None:
    """Return the attribution of a failure that its own *peer* did not cause; None for others."""
    if waited is not None and waited.is_collateral:
        return attribute_wait(waited)
    if shared is not None and shared.is_collateral_for(request_id, peer.address):
        return attribute_shared(shared, failure)
    return None


def _rank(value: Any) -> int | None:
    """Return the tensor-parallel rank; vLLM passes it alone or paired with the pipeline-parallel rank."""
    if isinstance(value, tuple):
        value = value[-1]
    return value if isinstance(value, int) else None


def make_room(table: dict[Any, Any]) -> None:
    """Remove the oldest entry of *table* if it is full."""
    if len(table) >= REMEMBERED:
        table.pop(next(iter(table)), None)
