"""What one NIXL worker tells about failures: each attempt's once, with its peer, its size and its cause.

vLLM calls from several threads: polling and posting on the worker's own, handshakes on theirs, in push mode writes on a
third. What they share here are deques, and dicts whose single operations are atomic.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import failure_attribution, nixl_sizes
from penstock.instrumentation.vllm.kv.nixl.cancellation import Cancellations
from penstock.instrumentation.vllm.kv.nixl.fault_injection import FaultInjection
from penstock.instrumentation.vllm.kv.nixl.handshake_table import HandshakeTable
from penstock.instrumentation.vllm.kv.nixl.nixl_context import NO_PLAN, CallContext, PlannedTransfer
from penstock.instrumentation.vllm.kv.nixl.transfer_table import TransferTable
from penstock.instrumentation.vllm.messages import LoadFailure
from penstock.instrumentation.vllm.naming import Peer, peers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.kv.nixl.failure_attribution import FailureAttribution, HandshakeWait
    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake
    from penstock.instrumentation.vllm.naming import Failure

PENDING: Final = 1_024
"""Reports that wait for the scheduler's next step; an idle engine has none to take them."""

REMEMBERED: Final = 8_192
"""Requests whose first transfer or failure is remembered until they are done."""

# vLLM tells these for each handle, and again at every poll as long as the handle is not released.
_ONCE: Final = frozenset(
    {
        c.FAILURE_MODE_SETUP,
        c.FAILURE_MODE_TRANSFER,
        c.FAILURE_MODE_EXCEPTION,
        c.FAILURE_MODE_TIMEOUT,
        c.FAILURE_MODE_RELEASE,
    }
)

# A request goes on without these: its KV has arrived or is somebody else's.
_HARMLESS: Final = frozenset({c.FAILURE_MODE_NOTIFICATION, c.FAILURE_MODE_RELEASE})

_LOAD: Final = "load"
_RELEASE: Final = "release"


class NixlFailureObserver:
    """The failures of one NIXL worker.

    Attributes:
        name: of its part of the snapshot.
        connector: the connector's name in vLLM's configuration.
        rank: of the worker in its engine.
        push: the peers write; else this worker reads.
        here: what vLLM is doing on the calling thread.
        faults: drills.
        cancels: loads that the scheduler has given up.

    """

    def __init__(self, worker: Any, *, name: str) -> None:
        """Observe *worker*, which vLLM has built."""
        self.name = name
        self.connector = str(worker.kv_transfer_config.kv_connector)
        self.rank: int = worker.vllm_config.parallel_config.rank
        self.push = getattr(worker, "_TRANSFER_MODE", "pull") == "push"
        self.here = CallContext()
        self.handshakes = HandshakeTable()
        self.transfers = TransferTable()
        self.faults = FaultInjection()
        self.cancels = Cancellations(push=self.push)
        self._worker = weakref.ref(worker)
        self._told: dict[str, dict[str, object]] = {}
        self._began: dict[str, int] = {}
        self._pinned: dict[str, dict[str, Any]] = {}
        self._rehearsed: dict[str, None] = {}
        self._failures: deque[LoadFailure] = deque(maxlen=PENDING)

    def failed(
        self,
        failure: Failure,
        request_id: str,
        *,
        meta: Any = None,
        direction: int = 0,
        context: Mapping[str, Any] | None = None,
        waited: HandshakeWait | None = None,
    ) -> None:
        """Emit one failure: of a load the first only, whatever follows from it; of others once where vLLM repeats it.

        Args:
            failure: what it was.
            request_id: vLLM's internal id; empty where it concerns none.
            meta: vLLM's ReqMeta of the load.
            direction: ``DIRECTION_*``; 0 for that of this worker's transfers.
            context: what else vLLM knew, by its names.
            waited: how the load that is given up has spent the wait for its start.

        """
        awaited = meta is not None and meta.awaiting_kvs
        ends_load = awaited and failure.mode not in _HARMLESS
        if awaited:
            direction = c.DIRECTION_RECEIVE
        if request_id and (ends_load or failure.mode in _ONCE):
            kind = _LOAD if ends_load or failure.mode != c.FAILURE_MODE_RELEASE else _RELEASE
            if not self._first(request_id, kind):
                return
        context, plan = context or {}, self._plan_of(request_id)
        peer, shared = self._peer_and_handshake(failure, meta, context, plan)
        blame = _blame(failure, request_id, peer, shared, waited)
        rehearsal = failure.rehearsal or any(each and each.rehearsal for each in (shared, blame))
        if rehearsal and request_id:
            self.rehearse(request_id)
        mode = failure.mode if blame is None else c.FAILURE_MODE_COLLATERAL
        fields = failure.fields() | self._extent(meta, plan)
        fields |= {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": direction or (c.DIRECTION_SEND if self.push else c.DIRECTION_RECEIVE),
            "mode": mode,
            "peer": peer.fields(_rank(context.get("remote_rank", plan.rank))),
            "attempt": 1 if awaited else 0,
            "handshake_id": shared.id if shared is not None else 0,
            "start_time_unix_nano": self._since(request_id, shared, waited),
        }
        if blame is not None:
            fields |= blame.fields()
        self.emit("transfer_failure", fields, request_id, rehearsal=rehearsal)
        if ends_load:
            culprit = None if blame is None else blame.culprit
            rehearsed = self._is_rehearsed(request_id)
            self._tell_scheduler(
                LoadFailure(request_id, mode, failure.error_type, peer, self.rank, rehearsed, culprit)
            )

    def _since(self, request_id: str, shared: Handshake | None, waited: HandshakeWait | None) -> int:
        """Return when what has failed began; 0 if that is not known."""
        if shared is not None:
            return shared.queued_ns
        return self._began.get(request_id, 0) if waited is None else waited.since_ns

    def _tell_scheduler(self, failure: LoadFailure) -> None:
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
        ending = self.here.handshake
        if ending is not None and (peer == Peer() or ending.peer.engine_id == peer.engine_id):
            # vLLM is telling those who waited for it; a push names neither peer nor engine.
            return (ending.peer if peer == Peer() else peer), ending
        return peer, self.handshakes.last(peer.engine_id)

    def peer_of(self, meta: Any, context: Mapping[str, Any]) -> Peer:
        """Return the peer that a load or vLLM's context names; its address as the last handshake knew it."""
        remote = getattr(meta, "remote", None)
        engine_id = peers.identifier(context.get("dst_engine_id") or context.get("remote_engine_id"))
        if remote is not None:
            named = peers.named(remote.host, remote.port, remote.engine_id)
            if named.address != peers.UNKNOWN:
                return named
            engine_id = engine_id or named.engine_id
        last = self.handshakes.last(engine_id)
        return last.peer if last is not None else Peer(engine_id=engine_id)

    def peer_of_agent(self, agent_name: str) -> Peer:
        """Return the peer that a NIXL agent of vLLM's tables belongs to."""
        worker = self._worker()
        for engine_id, agents in worker._remote_agents.copy().items() if worker is not None else ():
            if agent_name in agents.values():
                return self.peer_of(None, {"remote_engine_id": engine_id})
        return Peer()

    def at_hand(self, handle: Any) -> None:
        """Note that the handle which vLLM has just asked about is in trouble: what it tells next is about that."""
        posted = self.transfers.get(handle)
        self.here.transfer = posted.plan if posted is not None else NO_PLAN

    def _plan_of(self, request_id: str) -> PlannedTransfer:
        """Return the transfer at hand on this thread, if it is the request's."""
        plan = self.here.transfer
        return plan if plan.request_id == request_id else NO_PLAN

    def _extent(self, meta: Any, plan: PlannedTransfer) -> dict[str, Any]:
        """Return blocks and bytes that are affected: those of the load, or of the transfer at hand."""
        if meta is None:
            return {"blocks": plan.blocks, "bytes": plan.size} if plan.blocks else {}
        fields: dict[str, Any] = {"blocks": sum(len(group) for group in meta.local_block_ids)}
        size = nixl_sizes.bytes_of(self._worker(), meta.local_physical_block_ids)
        if size is not None:
            fields["bytes"] = size
        remote = meta.remote
        fields["remote_request_id"] = peers.identifier(remote.request_id) if remote is not None else ""
        return fields

    def _first(self, request_id: str, kind: str) -> bool:
        """Tell whether *kind* is told of a request for the first time; threads may race for it."""
        told = self._told.get(request_id)
        if told is None:
            bound(self._told)
            told = self._told.setdefault(request_id, {})
        mine = object()
        return told.setdefault(kind, mine) is mine

    # Blocks that stay

    def pinned(self, request_id: str, meta: Any) -> bool:
        """Tell, once, that the blocks of a load that was given up stay, because the peer may still write to them."""
        if request_id in self._pinned:
            return False
        bound(self._pinned)
        fields = {
            "channel": c.CHANNEL_KV,
            "peer": self.peer_of(meta, {}).fields(),
            "blocks": sum(len(group) for group in meta.local_block_ids),
            "since_time_unix_nano": time.time_ns(),
        }
        self._pinned[request_id] = fields
        self.emit("blocks_pinned", dict(fields), request_id)
        return True

    # Rehearsals

    def rehearse(self, request_id: str) -> None:
        """Note that a drill has hit a request: what follows for it is a rehearsal too."""
        bound(self._rehearsed)
        self._rehearsed[request_id] = None

    def _is_rehearsed(self, request_id: str) -> bool:
        return request_id in self._rehearsed

    def emit(self, kind: str, fields: dict[str, Any], request_id: str, *, rehearsal: bool = False) -> None:
        """Emit an event of this worker; the events of a request that a drill has hit are rehearsals."""
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
        """Forget a request that is done; tell that its blocks are let go if they were pinned."""
        fields = self._pinned.pop(request_id, None)
        if fields is not None:
            self.emit("blocks_pinned", fields | {"released": True}, request_id)
        self.cancels.end(request_id)
        self.handshakes.done(request_id)
        self._told.pop(request_id, None)
        self._rehearsed.pop(request_id, None)


def _blame(
    failure: Failure, request_id: str, peer: Peer, shared: Handshake | None, waited: HandshakeWait | None
) -> FailureAttribution | None:
    """Return whose doing a failure is if it is not that of its own *peer*."""
    if waited is not None and waited.blames_others:
        return failure_attribution.of_wait(waited)
    if shared is not None and shared.caused(request_id, peer.address):
        return failure_attribution.of_shared(shared, failure)
    return None


def _rank(value: Any) -> int | None:
    """Return a remote rank: vLLM gives a tensor-parallel rank or a pair of pipeline and tensor-parallel rank."""
    if isinstance(value, tuple):
        value = value[-1]
    return value if isinstance(value, int) else None


def bound(table: dict[Any, Any]) -> None:
    """Make room in *table*: its oldest entry goes when it is full."""
    if len(table) >= REMEMBERED:
        table.pop(next(iter(table)), None)
