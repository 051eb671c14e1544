"""NIXL: the mixins over the connector's worker and over the NIXL agent it holds. nixl_hook.py puts them there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation import constants as c
from penstock.instrumentation.guard import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm import failures, peers
from penstock.instrumentation.vllm.nixl_handshakes import Run
from penstock.instrumentation.vllm.peers import Peer

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.nixl_observer import NixlObserver

_GUARD = guard("nixl")
_SECOND = 1_000_000_000

_INVALID_PEER = (
    "vLLM holds this peer for invalid since its local NIXL metadata was lost, and does not read from it"
)
_TURN2_EXPIRED = "the blocks of the earlier turn have expired at the peer; vLLM declines the read"


class NixlAgentMixin:
    """Over the NIXL agent: it sees every handle that is posted, completed and released."""

    _penstock: NixlObserver | None = None
    _penstock_notified: Any = None

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> Any:
        """Note whose transfer is posted."""
        host: Any = super()
        observer = self._penstock
        if observer is not None and runtime.active:
            with _GUARD:
                request_id, peer = getattr(observer.here, "transfer", ("", Peer()))
                observer.posting(handle, request_id, peer)
        return host.transfer(handle, *args, **kwargs)

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """Note a transfer that is done; vLLM asks once for each."""
        host: Any = super()
        telemetry = host.get_xfer_telemetry(handle)
        if self._penstock is not None:
            with _GUARD:
                self._penstock.completed(handle, telemetry)
        return telemetry

    def release_xfer_handle(self, handle: Any) -> Any:
        """Note that a handle is let go."""
        host: Any = super()
        result = host.release_xfer_handle(handle)
        if self._penstock is not None:
            with _GUARD:
                self._penstock.released(handle)
        return result

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> Any:
        """Look at the notifications before vLLM does."""
        host: Any = super()
        notifications = host.get_new_notifs(*args, **kwargs)
        if notifications and self._penstock_notified is not None and runtime.active:
            with _GUARD:
                self._penstock_notified(notifications)
        return notifications


class NixlWorkerMixin:
    """Over the connector's worker, pull or push. Each method has the signature of the one it extends."""

    _penstock: NixlObserver | None = None

    def _ensure_handshake(self, engine_id: str, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        queued_ns = time.time_ns()
        future = upstream._ensure_handshake(engine_id, host, port, *args, **kwargs)
        observer = self._penstock
        if observer is not None and future is not None and runtime.active:
            with _GUARD:
                peer = peers.named(host, port, engine_id)
                new = observer.handshakes.join(peer, getattr(observer.here, "waiter", ""), future, queued_ns)
                if new is not None:

                    def ended(done: Any) -> None:
                        with _GUARD:
                            # vLLM forgets it now; it would hold the exception, and with it whole frames.
                            new.future = None
                            run = observer.handshakes.run_of(peer.engine_id)
                            observer.handshake_ended(new, run, done.exception())

                    future.add_done_callback(ended)
        return future

    def _nixl_handshake(
        self, host: str, port: int, remote_tp_size: int, expected_engine_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        upstream: Any = super()
        start_ns = time.time_ns()
        offset: float | None = None
        try:
            result = upstream._nixl_handshake(host, port, remote_tp_size, expected_engine_id, *args, **kwargs)
            if isinstance(result, tuple) and len(result) > 1 and isinstance(result[1], float):
                offset = result[1]
            return result
        finally:
            observer = self._penstock
            if observer is not None and runtime.active:
                with _GUARD:
                    offset_ns = None if offset is None else int(offset * _SECOND)
                    run = Run(start_ns, time.time_ns(), offset_ns)
                    observer.handshakes.ran(peers.identifier(expected_engine_id), run)

    def _background_nixl_handshake(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_for(req_id, "_background_nixl_handshake", req_id, *args, **kwargs)

    def _send_registration_to_p(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_for(req_id, "_send_registration_to_p", req_id, *args, **kwargs)

    def _do_start_push_kv(self, request_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_for(request_id, "_do_start_push_kv", request_id, *args, **kwargs)

    def _penstock_for(self, request_id: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's *method*; a handshake that it asks for is asked for by *request_id*."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return getattr(upstream, method)(*args, **kwargs)
        observer.here.waiter = request_id
        try:
            return getattr(upstream, method)(*args, **kwargs)
        finally:
            observer.here.waiter = ""

    def _read_blocks(self, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_posting("_read_blocks", *args, **kwargs)

    def _xfer_blocks(self, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_posting("_xfer_blocks", *args, **kwargs)

    def _penstock_posting(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's *method*; a transfer that it posts belongs to the request in its arguments."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return getattr(upstream, method)(*args, **kwargs)
        with _GUARD:
            request_id = str(kwargs.get("request_id", ""))
            meta = self._penstock_meta(request_id)
            observer.here.transfer = (
                request_id,
                observer.peer_of(meta, {"dst_engine_id": kwargs.get("dst_engine_id")}),
            )
        try:
            return getattr(upstream, method)(*args, **kwargs)
        finally:
            observer.here.transfer = ("", Peer())

    def _read_blocks_for_req(self, req_id: str, meta: Any, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        observer = self._penstock
        if observer is not None:
            observer.here.reading = (req_id, meta)
            if runtime.active:
                with _GUARD:
                    self._penstock_invalid_peer(observer, req_id, meta)
        return upstream._read_blocks_for_req(req_id, meta, *args, **kwargs)

    def _penstock_invalid_peer(self, observer: NixlObserver, req_id: str, meta: Any) -> None:
        """Report a read that vLLM is about to give up without a word, because it holds the peer for invalid."""
        if meta.remote.engine_id in self._penstock_state("_invalid_remote_engines"):
            failure = failures.Failure(
                c.FAILURE_MODE_SETUP, c.ERROR_TYPE_REMOTE_RESET, "invalid_remote_engine", "", _INVALID_PEER
            )
            observer.failed(failure, req_id, meta=meta)

    def _is_turn2_read_expired(self, meta: Any, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        expired = upstream._is_turn2_read_expired(meta, *args, **kwargs)
        observer = self._penstock
        if expired and observer is not None and runtime.active:
            with _GUARD:
                request_id, reading = getattr(observer.here, "reading", ("", None))
                failure = failures.Failure(
                    c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_EVICTED, "turn2_read_expired", "", _TURN2_EXPIRED
                )
                observer.failed(failure, request_id if reading is meta else "", meta=meta)
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
        upstream._log_failure(failure_type, req_id, msg, error, meta, **extra_context)
        observer = self._penstock
        # One without a request is a handshake's, which is told when it ends (_ensure_handshake).
        if observer is None or req_id is None or not runtime.active:
            return
        with _GUARD:
            state = extra_context.get("xfer_state")
            text = f"NIXL reports the transfer in state {state}" if state is not None else msg
            observer.failed(
                failures.classify(failure_type, error, text),
                req_id,
                meta=meta if meta is not None else self._penstock_meta(req_id),
                direction=c.DIRECTION_RECEIVE if failure_type.startswith("push_reg") else 0,
                context=extra_context,
            )

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        upstream: Any = super()
        before = set(done_sending) if self._penstock_state("_reqs_to_send") else None
        upstream._reap_expired_send_leases(done_sending)
        observer = self._penstock
        if observer is None or before is None or len(done_sending) == len(before):
            return
        with _GUARD:
            observer.leases_expired(sorted(done_sending - before))

    def get_transfer_results(self) -> Any:
        """Note which requests are done."""
        upstream: Any = super()
        results = upstream.get_transfer_results()
        observer = self._penstock
        if observer is not None:
            with _GUARD:
                if results.finished_recving:
                    observer.done(results.finished_recving, received=True)
                if results.finished_sending:
                    observer.done(results.finished_sending, received=False)
        return results

    def shutdown(self) -> None:
        """Stop contributing to the snapshot."""
        upstream: Any = super()
        if self._penstock is not None:
            runtime.snapshots.remove(self._penstock.name)
        upstream.shutdown()

    def _penstock_state(self, name: str) -> Any:
        """Return a container of vLLM's worker, empty where this version has none of that name."""
        return getattr(self, name, None) or ()

    def _penstock_meta(self, request_id: str) -> Any:
        """Return vLLM's ReqMeta of a request that is being received."""
        return (getattr(self, "_recving_metadata", None) or {}).get(request_id)

    def _penstock_notifications(self, notifications: dict[str, list[bytes]]) -> None:
        """Report reads of blocks that were let go before: vLLM knows neither a lease nor a batch of that request."""
        observer = self._penstock
        if observer is None:
            return
        for message in (message for messages in notifications.values() for message in messages):
            if message.startswith(b"HB:"):
                continue
            request_id = message.decode(errors="replace").rpartition(":")[0]
            known = self._penstock_state("_reqs_to_send"), self._penstock_state("_reqs_to_process")
            if request_id and not any(request_id in table for table in known):
                observer.read_late(request_id)
