"""The mixin over a NIXL connector's worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import can_fail_receive
from penstock.instrumentation.vllm.kv.nixl import upstream_counts
from penstock.instrumentation.vllm.kv.nixl.agent_mixin import WatchedQueue
from penstock.instrumentation.vllm.kv.nixl.cancellation import is_cancelled
from penstock.instrumentation.vllm.kv.nixl.handshake_mixin import NixlPushMixin
from penstock.instrumentation.vllm.kv.nixl.transfer_table import (
    NO_PLAN,
    PlannedTransfer,
    bytes_of_blocks,
    pieces_of_block,
)
from penstock.instrumentation.vllm.naming import failure_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver

_GUARD = guard("nixl")

_INVALID_PEER = (
    "vLLM has marked this peer invalid since its local NIXL metadata was lost, and does not read from it"
)
_TURN2_EXPIRED = "the blocks of the earlier turn have expired at the peer; vLLM declines the read"


class NixlSleepMixin:
    """Over a worker that takes its KV caches from NIXL while its engine sleeps, as vLLM's does from 0.33 on."""

    _penstock: NixlObserver | None = None

    # Set by vLLM's worker.
    _kv_unregistered: bool

    @classmethod
    def is_needed(cls, worker: type) -> bool:
        """Return whether the class of a worker has both methods."""
        return hasattr(worker, "unregister_kv_caches") and hasattr(worker, "restore_kv_caches")

    def unregister_kv_caches(self) -> None:
        """Note that peers cannot reach the KV caches from now on, unless vLLM had taken them already."""
        upstream: Any = super()
        peers = len(getattr(self, "_remote_agents", None) or ())
        upstream.unregister_kv_caches()
        self._penstock_look_at_caches(peers)

    def restore_kv_caches(self) -> None:
        """Note that peers can reach them again."""
        upstream: Any = super()
        upstream.restore_kv_caches()
        self._penstock_look_at_caches()

    def _penstock_look_at_caches(self, peers: int = 0) -> None:
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                observer.on_caches(released=bool(getattr(self, "_kv_unregistered", False)), peers=peers)


class NixlWorkerMixin(NixlPushMixin):
    """Over the connector's worker, pull or push. Each method has the signature of the one it extends."""

    def start_load_kv(self, metadata: Any) -> None:
        """Apply the scheduler's drills, telemetry settings and cancellations of this step before vLLM starts loads."""
        upstream: Any = super()
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                drills = getattr(metadata, "penstock_drills", None)
                if drills is not None:
                    observer.faults.replace(drills)
                telemetry = getattr(metadata, "penstock_telemetry", None)
                if telemetry is not None:
                    observer.log_limit.interval = telemetry.failure_log_interval
                cancel = getattr(metadata, "penstock_cancel", None)
                if cancel and runtime.active:
                    observer.cancel_overdue(self, cancel)
                observer.verification.take_orders(metadata)
            observer.calls.steps += 1
            observer.calls.begin("start_load_kv")
        upstream.start_load_kv(metadata)
        if observer is not None:
            observer.calls.end()

    def _read_blocks(self, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_with_plan("_read_blocks", *args, **kwargs)

    def _xfer_blocks(self, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_with_plan("_xfer_blocks", *args, **kwargs)

    def _penstock_with_plan(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's *method* with the transfer that its arguments describe as the current one."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return getattr(upstream, method)(*args, **kwargs)
        with _GUARD:
            observer.context.transfer = self._penstock_plan(observer, kwargs)
        try:
            return getattr(upstream, method)(*args, **kwargs)
        finally:
            observer.context.transfer = NO_PLAN

    def _penstock_plan(self, observer: NixlObserver, described: dict[str, Any]) -> PlannedTransfer:
        request_id = str(described.get("request_id", ""))
        context = {"dst_engine_id": described.get("dst_engine_id")}
        spec = described.get("read_spec")
        groups = getattr(spec, "local_block_ids", ())
        per_block = getattr(self, "_physical_blocks_per_logical_kv_block", 1)
        size, pieces = bytes_of_blocks(self, groups), pieces_of_block(self, context["dst_engine_id"] or "")
        return PlannedTransfer(
            request_id,
            observer.peer_of(self._penstock_meta(request_id), context),
            getattr(spec, "remote_rank", None),
            sum(len(group) for group in groups) // per_block,
            size // pieces if size is not None and pieces is not None else None,
        )

    def _read_blocks_for_req(self, req_id: str, meta: Any, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return upstream._read_blocks_for_req(req_id, meta, *args, **kwargs)
        observer.context.given_up = req_id if is_cancelled(meta) else ""
        if not runtime.active or observer.context.given_up:
            return upstream._read_blocks_for_req(req_id, meta, *args, **kwargs)
        observer.context.reading = (req_id, meta)
        with _GUARD:
            self._penstock_report_invalid_peer(observer, req_id, meta)
            self._penstock_check_read(req_id, meta)
        try:
            return upstream._read_blocks_for_req(req_id, meta, *args, **kwargs)
        except Exception as error:
            # vLLM does not catch it, and the worker dies: report the reason.
            with _GUARD:
                observer.on_failure(failure_modes.classify("read_setup_failed", error), req_id, meta=meta)
            raise

    def _penstock_report_invalid_peer(self, observer: NixlObserver, req_id: str, meta: Any) -> None:
        """Report a read that vLLM is about to fail without logging it, because the peer is marked invalid."""
        if meta.remote.engine_id in self._penstock_state("_invalid_remote_engines"):
            failure = failure_modes.Failure(
                c.FAILURE_MODE_SETUP, c.ERROR_TYPE_REMOTE_RESET, "invalid_remote_engine", "", _INVALID_PEER
            )
            observer.on_failure(failure, req_id, meta=meta)

    def _penstock_check_read(self, req_id: str, meta: Any) -> None:
        """Note a read from an engine that vLLM knows by another address than the request names."""
        remote = meta.remote
        invalid = self._penstock_state("_invalid_remote_engines")
        if remote.engine_id in self._penstock_state("_remote_agents") and remote.engine_id not in invalid:
            reads = req_id if any(meta.local_block_ids) else ""
            self._penstock_check_address(remote.engine_id, remote.host, remote.port, reads)

    def _is_turn2_read_expired(self, meta: Any, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        expired = upstream._is_turn2_read_expired(meta, *args, **kwargs)
        observer = self._penstock
        if expired and observer is not None and runtime.active:
            with _GUARD:
                observer.counts.saw(upstream_counts.EXPIRED)
                request_id, reading = observer.context.reading
                failure = failure_modes.Failure(
                    c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_EVICTED, "turn2_read_expired", "", _TURN2_EXPIRED
                )
                observer.on_failure(failure, request_id if reading is meta else "", meta=meta)
        return expired

    def _log_failure(
        self,
        failure_type: str,
        req_id: str | None,
        msg: str = "",
        error: BaseException | None = None,
        meta: Any = None,
        **extra_context: Any,
    ) -> None:
        upstream: Any = super()
        observer = self._penstock
        line = self._penstock_log_line(failure_type, req_id, msg, meta, extra_context)
        if line is not None:
            upstream._log_failure(failure_type, req_id, line, error, meta, **extra_context)
        # Without a request it is a handshake's, which is emitted at its end (_ensure_handshake).
        if observer is None or req_id is None:
            return
        given_up = False
        with _GUARD:
            given_up = observer.cancellations.pop_withheld(req_id) or is_cancelled(meta)
        observer.context.given_up = req_id if given_up else ""
        if not runtime.active:
            return
        with _GUARD:
            if failure_type in upstream_counts.LOGGED:
                observer.counts.saw(upstream_counts.LOGGED[failure_type])
            if given_up:
                return  # emitted when it was cancelled
            meta = meta if meta is not None else self._penstock_meta(req_id)
            state = extra_context.get("xfer_state")
            text = f"NIXL reports the transfer in state {state}" if state is not None else msg
            failure = failure_modes.classify(failure_type, error, text)
            direction = c.DIRECTION_RECEIVE if failure_type.startswith("push_reg") else 0
            observer.on_failure(failure, req_id, meta=meta, direction=direction, context=extra_context)
            if failure.mode == c.FAILURE_MODE_RELEASE and meta is not None:
                observer.on_blocks_pinned(req_id, meta)

    def _penstock_log_line(
        self, failure_type: str, req_id: str | None, msg: str, meta: Any, context: dict[str, Any]
    ) -> str | None:
        """Return the message of vLLM's log line about a failure, or None if the policy suppresses the line."""
        observer = self._penstock
        if observer is None or not runtime.active:
            return msg
        with _GUARD:
            meta = meta if meta is not None else self._penstock_meta(req_id)
            suppressed = observer.count_suppressed(failure_type, meta, context)
            if suppressed is None:
                return None
            if suppressed:
                return f"{msg} ({suppressed} similar messages suppressed)".lstrip()
        return msg

    def _penstock_pop_given_up(self, req_id: str) -> bool:
        """Return, once, whether what fails on this thread is a load that was given up (``compat.given_up_loads``)."""
        observer = self._penstock
        if observer is None or observer.context.given_up != req_id:
            return False
        observer.context.given_up = ""
        return True

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        upstream: Any = super()
        before = set(done_sending) if self._penstock_state("_reqs_to_send") else None
        upstream._reap_expired_send_leases(done_sending)
        observer = self._penstock
        if observer is None or before is None or len(done_sending) == len(before):
            return
        self._penstock_on_expired(sorted(done_sending - before))

    def _penstock_on_expired(self, request_ids: Sequence[str]) -> None:
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                observer.on_leases_expired(request_ids)

    def get_transfer_results(self) -> Any:
        """Compare what has arrived before vLLM uses it, digest what others will read, forget the finished requests."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return upstream.get_transfer_results()
        verification = observer.verification
        # Most steps have no order: they cost this look.
        ordered = verification.is_ordered
        loads: dict[str, Any] | None = None
        if ordered:
            with _GUARD:
                loads = verification.loads_of(self)
        observer.calls.begin("get_transfer_results")
        results = upstream.get_transfer_results()
        observer.calls.end()
        if ordered:
            with _GUARD:
                verification.begin()
                if loads and results.finished_recving:
                    self._penstock_verify(observer, results, loads)
            with _GUARD:
                verification.compute_digests(self)
        with _GUARD:
            observer.context.transfer = NO_PLAN
            if results.finished_recving or results.finished_sending:
                observer.on_finished(results.finished_recving | results.finished_sending)
        return results

    def _penstock_verify(self, observer: NixlObserver, results: Any, loads: dict[str, Any]) -> None:
        """Compare the loads that have ended; one that differs is a failed one to vLLM if the policy says so."""
        for request_id in loads.keys() & results.finished_recving:
            with _GUARD:
                self._penstock_verify_load(observer, results, request_id, loads[request_id])

    def _penstock_verify_load(self, observer: NixlObserver, results: Any, request_id: str, meta: Any) -> None:
        worker: Any = self
        order = observer.verification.pop(request_id)
        if request_id in results.failed_recving or meta is None or not runtime.active:
            return
        check = observer.verification.check(worker, order, meta)
        enforce = order.enforce and can_fail_receive(worker)
        if observer.on_checked(request_id, meta, check, enforce=enforce):
            results.failed_recving.add(request_id)
            # As vLLM does with a failed read.
            if not worker._is_hma_required:
                worker._invalid_block_ids.put(set(meta.local_block_ids[0]))

    def get_kv_connector_stats(self) -> Any:
        """Note what vLLM has counted, as it hands that over at the end of a step."""
        upstream: Any = super()
        stats = upstream.get_kv_connector_stats()
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                observer.counts.take(
                    getattr(stats, "data", None) or {},
                    getattr(getattr(self, "xfer_stats", None), "data", None) or {},
                    runtime.interruptions if runtime.active else None,
                    settled=not self._penstock_state("_handshake_futures"),
                )
        return stats

    def _get_new_notifs(self) -> Any:
        """Inspect what a push worker's writer has forwarded, each message just before vLLM handles it."""
        upstream: Any = super()
        observer = self._penstock
        forwarded = getattr(self, "_pending_completion_notifs", None)
        if observer is None or not observer.push or not runtime.active or forwarded is None:
            return upstream._get_new_notifs()
        self._pending_completion_notifs: Any = WatchedQueue(forwarded, self._penstock_report_late_write)
        try:
            return upstream._get_new_notifs()
        finally:
            self._pending_completion_notifs = forwarded

    def shutdown(self) -> None:
        """Stop contributing to the snapshot."""
        upstream: Any = super()
        if self._penstock is not None:
            runtime.snapshots.remove(self._penstock.name)
            self._penstock.faults.stop()
        upstream.shutdown()

    def _penstock_state(self, name: str) -> Any:
        """Return a container of vLLM's worker; empty if this version has none of that name."""
        return getattr(self, name, None) or ()

    def _penstock_meta(self, request_id: str | None) -> Any:
        """Return vLLM's ReqMeta of a request that is being received."""
        return (getattr(self, "_recving_metadata", None) or {}).get(request_id)

    def _penstock_report_late_read(self, message: bytes) -> None:
        """Report a read of released blocks: vLLM knows neither a lease nor a batch of its request."""
        observer = self._penstock
        request_id = self._penstock_unknown_request(message)
        if observer is not None and request_id:
            observer.on_late_read(request_id)

    def _penstock_report_late_write(self, message: bytes) -> None:
        """Report a write to released blocks: vLLM knows neither their load nor, as its sender, their request."""
        observer = self._penstock
        request_id = self._penstock_unknown_request(message, "_recving_metadata")
        if observer is not None and request_id:
            observer.on_late_write(request_id)

    def _penstock_unknown_request(self, message: bytes, *tables: str) -> str:
        """Return the request that a notification names if vLLM does not know it; else empty."""
        if message.startswith(b"HB:"):
            return ""
        request_id = message.decode(errors="replace").rpartition(":")[0]
        known = ("_reqs_to_send", "_reqs_to_process", *tables)
        return "" if any(request_id in self._penstock_state(name) for name in known) else request_id
