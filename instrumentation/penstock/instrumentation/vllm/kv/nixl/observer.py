"""Observes one NIXL worker: transfers, handshakes, leases, and the scheduler's cancellations."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import LogLimit, guard
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import upstream_counts
from penstock.instrumentation.vllm.kv.nixl.attempt_failures import (
    PENDING,
    Mismatch,
    NixlAttemptFailures,
    make_room,
)
from penstock.instrumentation.vllm.kv.nixl.cancellation import CancelResult
from penstock.instrumentation.vllm.kv.nixl.compatibility import MismatchedFactors
from penstock.instrumentation.vllm.kv.nixl.transfer_table import PostedTransfer
from penstock.instrumentation.vllm.kv.nixl.verification import WorkerVerification
from penstock.instrumentation.vllm.messages import Misread, WorkerReport
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer, failure_modes
from penstock.instrumentation.vllm.progress import ConnectorCalls
from penstock.rules import WaitKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.kv.integrity import LoadCheck
    from penstock.instrumentation.vllm.kv.nixl.failure_attribution import HandshakeTurn, HandshakeWait
    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake, HandshakeRun, OtherAddress

_GUARD = guard("nixl")
_OVERDUE: Final = "overdue"
_CANCELLED: Final = "the load exceeded the deadline of the policy's deferral and was cancelled"
_GIVEN_UP: Final = "a reflex of the policy gave the load up before its transfer began"
_PINNED: Final = (
    "the load exceeded the deadline of the policy's deferral; its blocks stay pinned until the transfer ends"
)


class NixlObserver(NixlAttemptFailures):
    """The transfers, handshakes and failures of one NIXL worker.

    Attributes:
        log_limit: limits vLLM's own log lines about failures.
        verification: what is digested and compared on this rank.
        calls: vLLM's calls into the worker.
        mismatched: the factors in which incompatible peers differ.
        caches_released_ns: since when no peer can reach the KV caches; 0 while peers can.

    """

    def __init__(self, worker: Any, *, name: str) -> None:
        """Observe *worker*, a NIXL worker built by vLLM."""
        super().__init__(worker, name=name)
        self.log_limit = LogLimit()
        self.calls = ConnectorCalls(self.connector, self.rank, c.CHANNEL_KV)
        self.mismatched = MismatchedFactors()
        self.caches_released_ns = 0
        self._started: deque[tuple[str, int]] = deque(maxlen=PENDING)
        self._expired: deque[str] = deque(maxlen=PENDING)
        self._pinned_ids: deque[str] = deque(maxlen=PENDING)
        self._misread: deque[Misread] = deque(maxlen=PENDING)
        self.verification = WorkerVerification()

    # Transfers

    def on_posted(self, handle: Any) -> None:
        """Record that the transfer planned on this thread is posted; the first of a load is reported to the scheduler."""
        now, plan = time.time_ns(), self.context.transfer
        direction = c.DIRECTION_SEND if self.push else c.DIRECTION_RECEIVE
        self.transfers.add(handle, PostedTransfer(plan, direction, now))
        if plan.request_id not in self._started_ns:
            make_room(self._started_ns)
            self._started_ns[plan.request_id] = now
            if not self.push:
                self._started.append((plan.request_id, now))
        if self.faults.armed and self.faults.on_posted(handle, plan.peer.address) is not None:
            self.mark_rehearsal(plan.request_id)

    def on_running(self, handle: Any) -> None:
        """Note that this poll finds a transfer still running: the time at which vLLM began it costs no look at the clock."""
        self.transfers.saw_running(handle, self.calls.began_ns)

    def on_completed(self, handle: Any, telemetry: Any) -> None:
        """Emit a completed transfer; *telemetry* is NIXL's, in microseconds, or None if NIXL keeps none.

        NIXL's duration ends with the look that has found the end, too.
        """
        posted = self.transfers.complete(handle)
        if posted is None:
            return
        if telemetry is None:
            self._emit_transfer(posted, c.TRANSFER_RESULT_OK, time.time_ns() - posted.start_ns)
            return
        # NIXL does not know of the time that a drill adds.
        slowed = self.faults.has_hits and self.faults.delays(handle)
        self._emit_transfer(
            posted,
            c.TRANSFER_RESULT_OK,
            time.time_ns() - posted.start_ns if slowed else int(telemetry.xferDuration) * 1_000,
            int(telemetry.totalBytes),
            int(telemetry.descCount),
            int(telemetry.postDuration) * 1_000,
        )

    def on_released(self, handle: Any) -> None:
        """Forget a released handle; one that did not complete is emitted as a failed transfer."""
        self.faults.on_released(handle)
        posted = self.transfers.pop(handle)
        if posted is not None:
            self._emit_transfer(posted, c.TRANSFER_RESULT_ERROR, time.time_ns() - posted.start_ns)

    def _emit_transfer(
        self,
        posted: PostedTransfer,
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
                posted.end_uncertainty_ns(duration_ns, post_ns),
                c.CHANNEL_KV,
                posted.direction,
                result,
                c.COMPONENT_WORKER,
                self.rank,
                self.connector,
                posted.plan.peer.address,
                posted.plan.peer.engine_id,
                posted.plan.request_id,
            )

    # Verification

    def on_checked(self, request_id: str, meta: Any, check: LoadCheck, *, enforce: bool) -> bool:
        """Record what the comparison of a load has found; tell whether the load fails by it."""
        self.verification.add(request_id, check)
        if not check.mismatched:
            return False
        text = f"{check.mismatched} of {check.compared} compared blocks differ from the sender's digest"
        failure = failure_modes.Failure(c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT, "", "", text)
        self.on_failure(
            failure, request_id, meta=meta, mismatch=Mismatch(check.compared, check.mismatched, not enforce)
        )
        return enforce

    # Handshakes

    def on_handshake_finished(
        self, handshake: Handshake, run: HandshakeRun | None, error: BaseException | None
    ) -> None:
        """Emit a finished handshake, and its failure if no request waited for it."""
        failure = failure_modes.classify("handshake_setup_failed", error) if error is not None else None
        handshake.failure = failure
        handshake.rehearsal = failure is not None and failure.rehearsal
        handshake.clock_offset_ns = run.clock_offset_ns if run is not None else None
        handshake.arguments = run.arguments if run is not None else None
        self.context.handshake = handshake
        fields = handshake.fields(run, failure, self.connector)
        self.emit("handshake", fields, "", rehearsal=handshake.rehearsal)
        if failure is not None:
            self.counts.saw(upstream_counts.HANDSHAKES)
            if not handshake.waiters_total:
                self.on_failure(failure, "", context={"remote_engine_id": handshake.peer.engine_id})
        elif run is not None:
            self._emit_delays(handshake, run)

    def _emit_delays(self, handshake: Handshake, run: HandshakeRun) -> None:
        """Emit the delays of requests that waited behind other peers' handshakes."""
        for delay in self.handshakes.delays(handshake, run):
            self._emit_delay(delay.request_id, handshake.peer, delay.delay_ns, delay.caused_by)

    def _emit_delay(self, request_id: str, peer: Peer, delay_ns: int, caused_by: HandshakeTurn) -> None:
        fields = {
            "channel": c.CHANNEL_KV,
            "peer": peer.fields(),
            "delay_nano": delay_ns,
            "caused_by_peer": caused_by.peer.fields(),
            "handshake_id": caused_by.handshake_id,
        }
        self.emit("transfer_delayed", fields, request_id, rehearsal=caused_by.rehearsal)

    # Engine ids that several engines have

    def on_misread(self, request_id: str, handshake: Handshake, other: OtherAddress) -> None:
        """Report to the scheduler that blocks of a request are read from another address than it names."""
        other.transfers += 1
        if not other.is_accused:
            return
        if other.owner == c.ADDRESS_OWNER_UNSPECIFIED:
            other.requests.append(request_id)
        self._misread.append(Misread(request_id, handshake.peer, other.peer, other.owner))

    def on_owner_known(self, handshake: Handshake, other: OtherAddress, owner: int | None) -> None:
        """Record who answers at an address, None for an engine with another id; correct what was reported before."""
        other.dismissed = owner is None
        other.owner = c.ADDRESS_OWNER_UNSPECIFIED if owner is None else owner
        if owner != c.ADDRESS_OWNER_UNSPECIFIED:
            told = c.ADDRESS_OWNER_SAME if owner is None else owner
            while other.requests:
                self._misread.append(Misread(other.requests.popleft(), handshake.peer, other.peer, told))

    # Failures that vLLM does not log as such

    def on_heartbeat_failed(self, agent_name: str, error: BaseException) -> None:
        """Emit a heartbeat that was not sent: the peer may release blocks that requests here wait for."""
        peer = self.peer_of_agent(agent_name)
        self.on_failure(
            failure_modes.classify("heartbeat_notif_failed", error),
            "",
            direction=c.DIRECTION_RECEIVE,
            context={"remote_engine_id": peer.engine_id},
        )

    def on_notification_dropped(self, drill: Drill) -> None:
        """Emit that a drill dropped the notification of the transfer planned on this thread."""
        plan = self.context.transfer
        text = f"drill {drill.id} drops the notification; the peer's lease will expire"
        self.mark_rehearsal(plan.request_id)
        failure = failure_modes.Failure(
            c.FAILURE_MODE_NOTIFICATION, c.ERROR_TYPE_OTHER, "", "", text, rehearsal=True
        )
        self.on_failure(failure, plan.request_id)

    def on_leases_expired(self, request_ids: Iterable[str]) -> None:
        """Emit leases that expired before every reader had read the blocks."""
        text = "the lease expired before every reader had read the blocks"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_TIMEOUT, "lease_expired", "", text
        )
        for request_id in request_ids:
            self._expired.append(request_id)
            self.counts.saw(upstream_counts.EXPIRED)
            self.on_failure(failure, request_id, direction=c.DIRECTION_SEND)

    def on_caches(self, *, released: bool, peers: int) -> None:
        """Emit that vLLM has taken the KV caches from NIXL, or given them back; nothing if it is as before."""
        since = self.caches_released_ns
        if released == bool(since):
            return
        self.caches_released_ns = time.time_ns() if released else 0
        if runtime.active:
            runtime.emit_event(
                "kv_caches_released",
                {
                    "connector": self.connector,
                    "restored": not released,
                    "since_time_unix_nano": since,
                    "peers": peers,
                },
                component=c.COMPONENT_WORKER,
                rank=self.rank,
            )

    def on_late_read(self, request_id: str) -> None:
        """Emit a read of released blocks: the reader may have got another request's KV."""
        self.counts.saw(upstream_counts.LATE)
        text = "the blocks were read after their release; the reader's output may be wrong"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_EVICTED, "read_after_expiry", "", text
        )
        self.on_failure(failure, request_id, direction=c.DIRECTION_SEND)

    def on_late_write(self, request_id: str) -> None:
        """Emit a write to blocks that no request waits for: they may belong to another request by now."""
        self.counts.saw(upstream_counts.LATE)
        text = "the peer has written to released blocks, which may belong to another request"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_CORRUPT, "write_after_expiry", "", text
        )
        self.on_failure(failure, request_id, direction=c.DIRECTION_RECEIVE)

    # vLLM's own log lines

    def count_suppressed(self, upstream_type: str, meta: Any, context: Mapping[str, Any]) -> int | None:
        """Return None if vLLM's log line about a failure is suppressed, else the number suppressed since the last one.

        Lines are limited by failure mode and peer.
        """
        peer = self.peer_of(meta, context)
        peer = peer if peer != Peer() else self.context.transfer.peer
        known = peer.address if peer.address != UNKNOWN else peer.engine_id
        return self.log_limit.admit((failure_modes.mode_of(upstream_type), known))

    # Cancellations by the scheduler

    def cancel_overdue(self, worker: Any, overdue: Mapping[str, WaitKind]) -> None:
        """Cancel loads that exceed a deadline; an error in one does not keep the others from being cancelled."""
        for request_id, wait in sorted(overdue.items()):
            with _GUARD:
                self._cancel(worker, request_id, wait)

    def _cancel(self, worker: Any, request_id: str, wait: WaitKind) -> None:
        """Cancel one load; emit that its blocks stay pinned if it cannot be cancelled. What a reflex gives up goes on then."""
        meta = worker._recving_metadata.get(request_id)
        result = self.cancellations.cancel(worker, request_id)
        pinned, reflex = result is CancelResult.PINNED, wait is WaitKind.REFLEX
        if result is CancelResult.SETTLED or (pinned and reflex):
            return
        meta = meta if pinned else worker._recving_metadata[request_id]
        # A wait before the transfer does not explain a slow transfer; but the transfer may have started on other ranks
        # only.
        waited = None
        if wait is WaitKind.START or not pinned:
            # The load has failed: its failure is emitted even if its attribution raises.
            with _GUARD:
                waited = self._end_wait(request_id, meta)
        text = _PINNED if pinned else _GIVEN_UP if reflex else _CANCELLED
        if waited is not None and waited.is_collateral:
            text = f"{text}: {waited.text}"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, "", "", failure_modes.cut(text)
        )
        self.on_failure(failure, request_id, meta=meta, waited=waited, given_up=reflex)
        if pinned:
            # A refused release may have pinned them before, of which the scheduler does not know.
            self.on_blocks_pinned(request_id, meta)
            if self._is_first(request_id, _OVERDUE):
                self._pinned_ids.append(request_id)

    def _end_wait(self, request_id: str, meta: Any) -> HandshakeWait | None:
        """Return the wait of a cancelled load for its start; emit the delay if other peers caused it."""
        peer = self.peer_of(meta, {})
        until_ns = self._started_ns.get(request_id) or time.time_ns()
        waited = self.handshakes.abandon(request_id, peer.address, until_ns)
        if waited is not None and waited.is_collateral and waited.blockers:
            self._emit_delay(request_id, peer, waited.blocked_ns, waited.blockers[0].longest)
        return waited

    # To the scheduler

    def on_finished(self, request_ids: Iterable[str]) -> None:
        """Forget finished requests."""
        for request_id in request_ids:
            self._started_ns.pop(request_id, None)
            self.forget(request_id)

    def report(self, inner: Any) -> Any:
        """Return the worker metadata of this step for the scheduler; *inner* is the connector's own.

        *inner* is always wrapped: vLLM aggregates the metadata of all ranks, which must have one type.
        """
        edges, checks = self.handshakes.edges, self.verification
        pending = (
            *(self._failures, self._started, self._expired, self._pinned_ids, self._stuck, edges),
            self._misread,
        )
        if inner is None and not any(pending) and not checks.has_news:
            return None
        return WorkerReport(
            failures=_drain(self._failures),
            began=_drain(self._started),
            expired=_drain(self._expired),
            pinned=_drain(self._pinned_ids),
            stuck=_drain(self._stuck),
            handshakes=_drain(edges),
            digests=_drain(checks.digests),
            checked=_drain(checks.checked),
            misread=_drain(self._misread),
            inner=inner,
        )


def _drain(pending: deque[Any]) -> tuple[Any, ...]:
    drained = []
    while pending:
        drained.append(pending.popleft())
    return tuple(drained)
