"""What one NIXL worker tells: transfers, failures, handshakes, leases, and its part of the snapshot.

vLLM calls from several threads: polling and posting on the worker's own, handshakes on theirs, in push mode writes on a
third. What they share here are deques, and dicts whose single operations are atomic.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import failures, peers
from penstock.instrumentation.vllm.nixl_handshakes import Handshakes
from penstock.instrumentation.vllm.nixl_transfers import Posted, Transfers
from penstock.instrumentation.vllm.peers import Peer
from penstock.instrumentation.vllm.reports import LoadFailure, WorkerReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.vllm.failures import Failure
    from penstock.instrumentation.vllm.nixl_handshakes import Handshake, Run

PENDING: Final = 1_024
"""Reports that wait for the scheduler's next step; an idle engine has none to take them."""

REMEMBERED: Final = 8_192
"""Requests whose first transfer or failure is remembered until they are done."""

# vLLM logs these again at every poll, as long as the handle is not released.
_POLLED: Final = frozenset({c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_EXCEPTION, c.FAILURE_MODE_RELEASE})

# A request goes on without these: its KV has arrived or is somebody else's.
_HARMLESS: Final = frozenset({c.FAILURE_MODE_NOTIFICATION, c.FAILURE_MODE_RELEASE})


class NixlObserver:
    """What is known of one NIXL worker.

    Attributes:
        name: of its part of the snapshot.
        rank: of the worker in its engine.
        here: of the calling thread: the request that vLLM is working for.

    """

    def __init__(self, *, name: str, connector: str, rank: int, push: bool) -> None:
        self.name = name
        self.connector = connector
        self.rank = rank
        self.handshakes = Handshakes()
        self.transfers = Transfers()
        self.here = threading.local()
        self._push = push
        self._told: dict[str, set[str]] = {}
        self._began: dict[str, int] = {}
        self._failures: deque[LoadFailure] = deque(maxlen=PENDING)
        self._started: deque[tuple[str, int]] = deque(maxlen=PENDING)
        self._expired: deque[str] = deque(maxlen=PENDING)

    # Transfers

    def posting(self, handle: Any, request_id: str, peer: Peer) -> None:
        """Note that a transfer is about to be posted."""
        now = time.time_ns()
        direction = c.DIRECTION_SEND if self._push else c.DIRECTION_RECEIVE
        self.transfers.begin(handle, Posted(request_id, peer, direction, now))
        if request_id not in self._began:
            _bound(self._began)
            self._began[request_id] = now

    def completed(self, handle: Any, telemetry: Any) -> None:
        """Emit a good transfer; *telemetry* is NIXL's, in microseconds, or None where it keeps none."""
        posted = self.transfers.end(handle)
        if posted is None:
            return
        if telemetry is None:
            self._sample(posted, c.TRANSFER_RESULT_OK, time.time_ns() - posted.start_ns)
            return
        self._sample(
            posted,
            c.TRANSFER_RESULT_OK,
            int(telemetry.xferDuration) * 1_000,
            int(telemetry.totalBytes),
            int(telemetry.descCount),
            int(telemetry.postDuration) * 1_000,
        )

    def released(self, handle: Any) -> None:
        """Note that a handle is let go; one that did not complete is a transfer that ended in an error."""
        posted = self.transfers.end(handle)
        if posted is not None:
            self._sample(posted, c.TRANSFER_RESULT_ERROR, time.time_ns() - posted.start_ns)

    def _sample(
        self,
        posted: Posted,
        result: int,
        duration_ns: int,
        transferred: int = 0,
        descriptors: int = 0,
        post_ns: int = 0,
    ) -> None:
        if runtime.active:
            runtime.emit_transfer(
                posted.start_ns + duration_ns,
                duration_ns,
                transferred,
                descriptors,
                post_ns,
                c.CHANNEL_KV,
                posted.direction,
                result,
                c.COMPONENT_WORKER,
                self.rank,
                self.connector,
                posted.peer.address,
                posted.peer.engine_id,
                posted.request_id,
            )

    # Failures

    def failed(
        self,
        failure: Failure,
        request_id: str,
        *,
        meta: Any = None,
        direction: int = 0,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Emit one failure, once per request and kind where vLLM tells it again at every poll.

        Args:
            failure: what it was.
            request_id: vLLM's internal id; empty where it concerns none.
            meta: vLLM's ReqMeta of the load.
            direction: ``DIRECTION_*``; 0 for that of this worker's transfers.
            context: what else vLLM knew, by its names.

        """
        if failure.mode in _POLLED and not self._first(request_id, failure.upstream_type):
            return
        context = context or {}
        peer = self.peer_of(meta, context)
        shared = self.handshakes.last(peer.engine_id) if failure.mode == c.FAILURE_MODE_HANDSHAKE else None
        mode, caused_by = failure.mode, ""
        if shared is not None and shared.caused(request_id, peer.address):
            mode, caused_by = c.FAILURE_MODE_COLLATERAL, shared.initiator
        direction = direction or (c.DIRECTION_SEND if self._push else c.DIRECTION_RECEIVE)
        awaited = meta is not None and meta.awaiting_kvs
        fields = failure.fields()
        fields |= {
            "channel": c.CHANNEL_KV,
            "connector": self.connector,
            "direction": direction,
            "mode": mode,
            "peer": peer.fields(_rank(context.get("remote_rank"))),
            "attempt": 1 if awaited else 0,
            "handshake_id": shared.id if shared is not None else 0,
            "caused_by_request_id": caused_by,
            "start_time_unix_nano": shared.queued_ns
            if shared is not None
            else self._began.get(request_id, 0),
        }
        if meta is not None:
            fields["blocks"] = sum(len(group) for group in meta.local_block_ids)
            fields["remote_request_id"] = (
                peers.identifier(meta.remote.request_id) if meta.remote is not None else ""
            )
        self._emit("transfer_failure", fields, request_id)
        if awaited and direction == c.DIRECTION_RECEIVE and mode not in _HARMLESS:
            self._failures.append(LoadFailure(request_id, mode, failure.error_type, peer, self.rank))

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

    def _first(self, request_id: str, kind: str) -> bool:
        told = self._told.get(request_id)
        if told is None:
            _bound(self._told)
            told = self._told.setdefault(request_id, set())
        if kind in told:
            return False
        told.add(kind)
        return True

    # Handshakes

    def handshake_ended(self, handshake: Handshake, run: Run | None, error: BaseException | None) -> None:
        """Emit a handshake that has ended; a failure that no request waited for is reported here, too."""
        failure = failures.classify("handshake_setup_failed", error) if error is not None else None
        self._emit("handshake", handshake.fields(run, failure, self.connector), "")
        if failure is not None and not handshake.waiters_total:
            self.failed(failure, "", context={"remote_engine_id": handshake.peer.engine_id})

    # Prefill side

    def leases_expired(self, request_ids: Iterable[str]) -> None:
        """Emit the leases that ran out before everybody had read."""
        text = "the lease ran out before every reader had read the blocks"
        failure = failures.Failure(c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_TIMEOUT, "lease_expired", "", text)
        for request_id in request_ids:
            self._expired.append(request_id)
            self.failed(failure, request_id, direction=c.DIRECTION_SEND)

    def read_late(self, request_id: str) -> None:
        """Emit a read of blocks that had been let go: what the reader got may be another request's."""
        text = "the blocks were read after they had been let go; the reader's output may be wrong"
        failure = failures.Failure(
            c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_EVICTED, "read_after_expiry", "", text
        )
        self.failed(failure, request_id, direction=c.DIRECTION_SEND)

    # To the scheduler

    def done(self, request_ids: Iterable[str], *, received: bool) -> None:
        """Forget the requests that are done; tell the scheduler when the first transfer of a received one began."""
        for request_id in request_ids:
            began = self._began.pop(request_id, None)
            if received and began is not None:
                self._started.append((request_id, began))
            self._told.pop(request_id, None)

    def report(self, inner: Any) -> Any:
        """Return what goes to the scheduler with this step; *inner* is the connector's own metadata.

        A connector's own is always wrapped, because the ranks' are combined and must be of one kind.
        """
        if inner is None and not (self._failures or self._started or self._expired):
            return None
        return WorkerReport(_drain(self._failures), _drain(self._started), _drain(self._expired), inner)

    def _emit(self, kind: str, fields: dict[str, Any], request_id: str) -> None:
        if runtime.active:
            runtime.emit_event(
                kind, fields, component=c.COMPONENT_WORKER, rank=self.rank, request_id=request_id
            )


def _drain(pending: deque[Any]) -> tuple[Any, ...]:
    taken = []
    while pending:
        taken.append(pending.popleft())
    return tuple(taken)


def _bound(table: dict[Any, Any]) -> None:
    """Make room in *table*: its oldest entry goes when it is full."""
    if len(table) >= REMEMBERED:
        table.pop(next(iter(table)), None)


def _rank(value: Any) -> int | None:
    """Return a remote rank: vLLM gives a tensor-parallel rank or a pair of pipeline and tensor-parallel rank."""
    if isinstance(value, tuple):
        value = value[-1]
    return value if isinstance(value, int) else None
