"""What one NIXL worker tells: transfers, handshakes, leases, orders that it carries out; failures in nixl_failures.py."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import LogLimit, guard
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import WaitKind
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl.cancellation import CancelResult
from penstock.instrumentation.vllm.kv.nixl.failure_observer import PENDING, NixlFailureObserver, bound
from penstock.instrumentation.vllm.kv.nixl.transfer_table import PostedTransfer
from penstock.instrumentation.vllm.messages import WorkerReport
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer, failure_modes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.instrumentation.resilience import Drill
    from penstock.instrumentation.vllm.kv.nixl.failure_attribution import HandshakeTurn, HandshakeWait
    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake, HandshakeRun

_GUARD = guard("nixl")
_TOO_LONG: Final = "the load took longer than the policy's deferral allows, and was cancelled"
_STAYS: Final = (
    "the load takes longer than the policy's deferral allows; its blocks stay until the transfer has ended"
)


class NixlObserver(NixlFailureObserver):
    """What is known of one NIXL worker.

    Attributes:
        log_limit: of the lines that vLLM writes about failures.

    """

    def __init__(self, worker: Any, *, name: str) -> None:
        """Observe *worker*, which vLLM has built."""
        super().__init__(worker, name=name)
        self.log_limit = LogLimit()
        self._started: deque[tuple[str, int]] = deque(maxlen=PENDING)
        self._expired: deque[str] = deque(maxlen=PENDING)
        self._kept: deque[str] = deque(maxlen=PENDING)

    # Transfers

    def posting(self, handle: Any) -> None:
        """Note that the transfer planned on this thread is posted; the scheduler hears of the first of each load."""
        now, plan = time.time_ns(), self.here.transfer
        direction = c.DIRECTION_SEND if self.push else c.DIRECTION_RECEIVE
        self.transfers.begin(handle, PostedTransfer(plan, direction, now))
        if plan.request_id not in self._began:
            bound(self._began)
            self._began[plan.request_id] = now
            if not self.push:
                self._started.append((plan.request_id, now))
        if self.faults.armed and self.faults.posted(handle, plan.peer.address) is not None:
            self.rehearse(plan.request_id)

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
        self.faults.released(handle)
        posted = self.transfers.end(handle)
        if posted is not None:
            self._sample(posted, c.TRANSFER_RESULT_ERROR, time.time_ns() - posted.start_ns)

    def _sample(
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

    # Handshakes

    def handshake_ended(
        self, handshake: Handshake, run: HandshakeRun | None, error: BaseException | None
    ) -> None:
        """Emit a handshake that has ended; a failure that no request waited for is reported here, too."""
        failure = failure_modes.classify("handshake_setup_failed", error) if error is not None else None
        handshake.rehearsal = failure is not None and failure.rehearsal
        handshake.clock_offset_ns = run.clock_offset_ns if run is not None else None
        self.here.handshake = handshake
        fields = handshake.fields(run, failure, self.connector)
        self.emit("handshake", fields, "", rehearsal=handshake.rehearsal)
        if failure is not None:
            if not handshake.waiters_total:
                self.failed(failure, "", context={"remote_engine_id": handshake.peer.engine_id})
        elif run is not None:
            self._delayed(handshake, run)

    def _delayed(self, handshake: Handshake, run: HandshakeRun) -> None:
        """Emit what it cost good requests that another peer's handshake was in the way."""
        for delay in self.handshakes.delays(handshake, run):
            self._held_up(delay.request_id, handshake.peer, delay.delay_ns, delay.caused_by)

    def _held_up(self, request_id: str, peer: Peer, delay_ns: int, caused_by: HandshakeTurn) -> None:
        fields = {
            "channel": c.CHANNEL_KV,
            "peer": peer.fields(),
            "delay_nano": delay_ns,
            "caused_by_peer": caused_by.peer.fields(),
            "handshake_id": caused_by.handshake_id,
        }
        self.emit("transfer_delayed", fields, request_id, rehearsal=caused_by.rehearsal)

    # Failures that vLLM keeps to itself

    def heartbeat_failed(self, agent_name: str, error: BaseException) -> None:
        """Emit a heartbeat that was not sent: the peer may let blocks go that requests here wait for."""
        peer = self.peer_of_agent(agent_name)
        self.failed(
            failure_modes.classify("heartbeat_notif_failed", error),
            "",
            direction=c.DIRECTION_RECEIVE,
            context={"remote_engine_id": peer.engine_id},
        )

    def notification_left_out(self, drill: Drill) -> None:
        """Emit a notification that a drill leaves out of the transfer that is planned on this thread."""
        plan = self.here.transfer
        text = f"rehearsal: fault drill {drill.id} leaves out the notification; the peer's lease will run out"
        self.rehearse(plan.request_id)
        failure = failure_modes.Failure(
            c.FAILURE_MODE_NOTIFICATION, c.ERROR_TYPE_OTHER, "", "", text, rehearsal=True
        )
        self.failed(failure, plan.request_id)

    def leases_expired(self, request_ids: Iterable[str]) -> None:
        """Emit the leases that ran out before everybody had read."""
        text = "the lease ran out before every reader had read the blocks"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_TIMEOUT, "lease_expired", "", text
        )
        for request_id in request_ids:
            self._expired.append(request_id)
            self.failed(failure, request_id, direction=c.DIRECTION_SEND)

    def read_late(self, request_id: str) -> None:
        """Emit a read of blocks that had been let go: what the reader got may be another request's."""
        text = "the blocks were read after they had been let go; the reader's output may be wrong"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_EVICTED, "read_after_expiry", "", text
        )
        self.failed(failure, request_id, direction=c.DIRECTION_SEND)

    def written_late(self, request_id: str) -> None:
        """Emit a write that came for blocks which nobody here waits for: they may be another request's by now."""
        text = "the peer has written to blocks that are no longer waited for; they may be another request's"
        failure = failure_modes.Failure(
            c.FAILURE_MODE_LATE_READ, c.ERROR_TYPE_CORRUPT, "write_after_expiry", "", text
        )
        self.failed(failure, request_id, direction=c.DIRECTION_RECEIVE)

    # vLLM's own lines

    def lines_left_out(self, upstream_type: str, meta: Any, context: Mapping[str, Any]) -> int | None:
        """Return None if vLLM's line about a failure is to be left out, else how many were since the last one like it.

        Alike are those of one mode and one peer.
        """
        peer = self.peer_of(meta, context)
        peer = peer if peer != Peer() else self.here.transfer.peer
        known = peer.address if peer.address != UNKNOWN else peer.engine_id
        return self.log_limit.admit((failure_modes.mode_of(upstream_type), known))

    # Orders of the scheduler

    def cancel(self, worker: Any, overdue: Mapping[str, WaitKind]) -> None:
        """Give up the loads that are over a deadline; of those that a transfer may still write to, tell that their blocks stay."""
        for request_id, wait in sorted(overdue.items()):
            meta = worker._recving_metadata.get(request_id)
            result = self.cancels.cancel(worker, request_id)
            if result is CancelResult.SETTLED:
                continue
            stays = result is CancelResult.PINNED
            meta = meta if stays else worker._recving_metadata[request_id]
            # Whoever was in the way before the transfer is not why the transfer takes so long; but it may have begun on other
            # ranks only.
            waited = None
            if wait is WaitKind.START or not stays:
                # It has failed by now: that has to be told, whoever is to blame.
                with _GUARD:
                    waited = self._waited(request_id, meta)
            text = _STAYS if stays else _TOO_LONG
            if waited is not None and waited.blames_others:
                text = f"{text}: {waited.text}"
            failure = failure_modes.Failure(
                c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, "", "", failure_modes.cut(text)
            )
            self.failed(failure, request_id, meta=meta, waited=waited)
            if stays and self.pinned(request_id, meta):
                self._kept.append(request_id)

    def _waited(self, request_id: str, meta: Any) -> HandshakeWait | None:
        """Return how a load that is given up has spent the wait for its start; tell who else was in the way if that is why."""
        peer = self.peer_of(meta, {})
        until_ns = self._began.get(request_id) or time.time_ns()
        waited = self.handshakes.give_up(request_id, peer.address, until_ns)
        if waited is not None and waited.blames_others and waited.holds:
            self._held_up(request_id, peer, waited.held_ns, waited.holds[0].longest)
        return waited

    # To the scheduler

    def done(self, request_ids: Iterable[str]) -> None:
        """Forget the requests that are done."""
        for request_id in request_ids:
            self._began.pop(request_id, None)
            self.forget(request_id)

    def report(self, inner: Any) -> Any:
        """Return what goes to the scheduler with this step; *inner* is the connector's own metadata.

        A connector's own is always wrapped, because the ranks' are combined and must be of one kind.
        """
        if inner is None and not (self._failures or self._started or self._expired or self._kept):
            return None
        return WorkerReport(
            _drain(self._failures), _drain(self._started), _drain(self._expired), inner, _drain(self._kept)
        )


def _drain(pending: deque[Any]) -> tuple[Any, ...]:
    taken = []
    while pending:
        taken.append(pending.popleft())
    return tuple(taken)
