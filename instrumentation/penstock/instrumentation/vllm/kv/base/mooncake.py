"""Observes the workers of vLLM's MooncakeConnector: why loads fail, which leases run out, which writes fail.

vLLM counts all three and only logs them. The hook imports neither Mooncake nor its connector: it instruments workers that vLLM
has built.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Extension, Part, Requirement, Swaps, registry
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base.connector_adapters import classify_mooncake_failure
from penstock.instrumentation.vllm.kv.nixl import UpstreamCounts
from penstock.instrumentation.vllm.messages import LoadFailureReasons
from penstock.instrumentation.vllm.naming import failure_modes, peers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need
    from penstock.instrumentation.vllm.messages import LoadReason
    from penstock.proto.v1.snapshot_pb2 import Snapshot

LOADS: Final = "num_failed_recvs"
WRITES: Final = "num_failed_transfers"
EXPIRED: Final = "num_kv_expired_reqs"

PENDING_MAX: Final = 4_096
"""Expired leases that wait for the scheduler's next step; the oldest is forgotten beyond that."""

_GUARD = guard("mooncake")
_FAILED = "_handle_failed_recv"
_EXPIRED_TEXT: Final = "the lease expired before every reader had read the blocks"


class MooncakeObserver:
    """One worker's reasons, expired leases and counts.

    Attributes:
        reasons: why loads failed; noted on the thread of the receiver's loop.
        expired: requests whose lease ran out; added on the thread of the sender's loop while the worker's waits for it.
        counts: vLLM's own counters, and what the mixin has seen of their events.

    """

    def __init__(self, connector: str, rank: int) -> None:
        """Observe the worker of a connector by its name; the snapshot has its counts while this lives."""
        self.reasons = LoadFailureReasons(rank)
        self.expired: deque[str] = deque(maxlen=PENDING_MAX)
        self.counts = UpstreamCounts(
            runtime.interruptions if runtime.active else None, names=(LOADS, WRITES, EXPIRED)
        )
        self._connector = connector
        self._rank = rank
        runtime.snapshots.add_living("mooncake", self)

    def fill(self, snapshot: Snapshot) -> None:
        """Add the counts. On the exporter's thread."""
        for name, upstream, seen in self.counts.totals:
            snapshot.upstream_counts.add(
                name=name, upstream=upstream, seen=seen, connector=self._connector, rank=self._rank
            )

    def on_failed_loads(self, pull_metas: Any, req_ids: Any, reason: str) -> None:
        """Note why vLLM is about to fail these loads; the scheduler's side emits them."""
        failure = classify_mooncake_failure(reason, sys.exc_info()[1])
        for each in dict.fromkeys(req_ids):
            meta = pull_metas.get(each)
            if meta is not None and not meta.failed:
                self.counts.saw(LOADS)
                self.reasons.note(meta.d_req_id, failure)

    def on_failed_write(self, session: object, code: object, start_ns: int) -> None:
        """Emit a write that Mooncake refused; it may have been for several requests, which their readers report."""
        self.counts.saw(WRITES)
        host, _, port = str(session).rpartition(":")
        failure = failure_modes.Failure(
            c.FAILURE_MODE_TRANSFER,
            c.ERROR_TYPE_OTHER,
            error_text=f"Mooncake transfer engine returned {code}",
        )
        self._emit(failure, peers.Peer(peers.address(host.strip("[]"), port)), "", start_ns)

    def on_expired(self, request_ids: Iterable[str]) -> None:
        """Emit leases that ran out."""
        failure = failure_modes.Failure(
            c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_TIMEOUT, "lease_expired", "", _EXPIRED_TEXT
        )
        for request_id in request_ids:
            self.counts.saw(EXPIRED)
            self.expired.append(request_id)
            self._emit(failure, peers.Peer(), request_id)

    def on_results(self, results: Any) -> None:
        """Nothing: all is noted before."""

    def drain(self) -> tuple[tuple[LoadReason, ...], tuple[str, ...]]:
        """Return the reasons and the expired leases since the last call; on the worker's thread."""
        return self.reasons.drain(), tuple(self.expired.popleft() for _ in range(len(self.expired)))

    def _emit(
        self, failure: failure_modes.Failure, peer: peers.Peer, request_id: str, start_ns: int = 0
    ) -> None:
        fields = failure.fields() | {
            "channel": c.CHANNEL_KV,
            "connector": self._connector,
            "direction": c.DIRECTION_SEND,
            "peer": peer.fields(),
            "start_time_unix_nano": start_ns,
        }
        runtime.emit_event(
            "transfer_failure", fields, component=c.COMPONENT_WORKER, rank=self._rank, request_id=request_id
        )


class MooncakeWorkerMixin:
    """Mixin over a ``MooncakeConnectorWorker``; each method runs on another of its threads."""

    _penstock_mooncake: MooncakeObserver | None = None

    def _handle_failed_recv(self, pull_metas: Any, req_ids: Any, reason: str) -> Any:
        """Record the reason, which vLLM only logs."""
        upstream: Any = super()
        observer = self._penstock_mooncake
        if observer is not None and runtime.active:
            with _GUARD:
                observer.on_failed_loads(pull_metas, req_ids, reason)
        return upstream._handle_failed_recv(pull_metas, req_ids, reason)

    def _send_blocks(self, remote_session: Any, *args: Any, **kwargs: Any) -> Any:
        """Report a write that failed."""
        upstream: Any = super()
        start_ns = time.time_ns()
        code = upstream._send_blocks(remote_session, *args, **kwargs)
        observer = self._penstock_mooncake
        if code != 0 and observer is not None and runtime.active:
            with _GUARD:
                observer.on_failed_write(remote_session, code, start_ns)
        return code

    async def fetch_finished_sending_reqs(self) -> Any:
        """Report the leases that run out: vLLM returns them with those whose readers have read."""
        upstream: Any = super()
        observer = self._penstock_mooncake
        read = frozenset(getattr(self, "finished_sending_reqs", ()))
        ended = await upstream.fetch_finished_sending_reqs()
        if ended and observer is not None and runtime.active:
            with _GUARD:
                observer.on_expired(sorted(ended - read))
        return ended

    def get_kv_connector_stats(self) -> Any:
        """Note what vLLM has counted, as it hands that over at the end of a step."""
        upstream: Any = super()
        stats = upstream.get_kv_connector_stats()
        observer = self._penstock_mooncake
        if observer is not None:
            with _GUARD:
                observer.counts.take(
                    getattr(stats, "data", None) or {},
                    getattr(getattr(self, "xfer_stats", None), "data", None) or {},
                    runtime.interruptions if runtime.active else None,
                    settled=True,  # both sides count at the event's end
                )
        return stats


class MooncakeHook:
    """Requires what the mixin extends in the worker's class; it patches worker objects only."""

    name = "mooncake"
    component = c.COMPONENT_WORKER

    def __init__(self, worker: type) -> None:
        """Check *worker*, the class of a Mooncake worker."""
        self._worker = worker
        self.swaps = Swaps()

    def requires(self) -> Iterable[Need | Part]:
        """Return the methods that the mixin extends."""
        worker = self._worker
        return [
            Requirement(worker, _FAILED, ("pull_metas", "req_ids", "reason")),
            Extension(MooncakeWorkerMixin, worker),
            Part(
                "lease_expiry",
                "which leases expired before they were read",
                (Requirement(worker, "fetch_finished_sending_reqs"),),
            ),
            Part(
                "failed_writes",
                "writes that failed",
                (Requirement(worker, "_send_blocks", ("remote_session",)),),
            ),
            Part(
                "upstream_counts",
                "whether vLLM counts the same failures",
                (Requirement(worker, "get_kv_connector_stats"),),
            ),
        ]

    def install(self) -> None:
        """Do nothing: :class:`MooncakeWorkers` instruments each worker."""

    def uninstall(self) -> None:
        """Restore the class of live workers."""
        self.swaps.restore()


class MooncakeWorkers:
    """Instruments every Mooncake worker of the process, if the hook's requirements are met."""

    def __init__(self) -> None:
        self._hook: MooncakeHook | None = None

    def instrument(self, connector: Any, name: str, rank: int) -> MooncakeObserver | None:
        """Put the mixin over the worker of *connector*, called *name*; return None if it has none or the requirements are not met."""
        worker: Any = getattr(connector, "connector_worker", None)
        if not hasattr(worker, _FAILED):
            return None
        self._hook = self._hook or MooncakeHook(type(worker))
        settings = runtime.settings
        if not registry.install(self._hook, settings.hooks_disabled if settings is not None else ()):
            return None
        self._hook.swaps.swap(worker, MooncakeWorkerMixin)
        observer = MooncakeObserver(name, rank)
        worker._penstock_mooncake = observer
        return observer
