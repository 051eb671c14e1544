"""The mixin over a NIXL worker's handshakes: who asks for one, its duration and result, the cause of its failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import port_probe
from penstock.instrumentation.vllm.kv.nixl.handshake_table import HandshakeRun
from penstock.instrumentation.vllm.naming import failure_modes, peers
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Drill
    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver

_GUARD = guard("nixl")


class NixlHandshakeMixin:
    """Over the connector's worker, pull or push. Each method has the signature of the one it extends."""

    _penstock: NixlObserver | None = None

    def _ensure_handshake(self, engine_id: str, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        queued_ns = time.time_ns()
        future = upstream._ensure_handshake(engine_id, host, port, *args, **kwargs)
        if future is not None:
            self._penstock_join_handshake(engine_id, host, port, future, queued_ns)
        return future

    def _penstock_join_handshake(
        self, engine_id: str, host: str, port: int, future: Any, queued_ns: int
    ) -> None:
        """Observe a handshake that is queued or under way; *queued_ns* by ``time.time_ns()``."""
        observer = self._penstock
        if observer is None or not runtime.active:
            return
        with _GUARD:
            peer = peers.named(host, port, engine_id)
            new = observer.handshakes.join(peer, observer.context.waiter, future, queued_ns)
            if new is None:
                return

            def ended(done: Any) -> None:
                with _GUARD:
                    # vLLM drops the future now; kept, it would hold the exception and its frames.
                    new.future = None
                    run = observer.handshakes.pop_run(peer.engine_id)
                    observer.on_handshake_finished(new, run, done.exception())

            future.add_done_callback(ended)

    def _nixl_handshake(
        self, host: str, port: int, remote_tp_size: int, expected_engine_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return upstream._nixl_handshake(host, port, remote_tp_size, expected_engine_id, *args, **kwargs)
        start_ns, began = time.time_ns(), time.monotonic_ns()
        engine_id = ""
        drill: Drill | None = None
        result: Any = None
        failed = True
        with _GUARD:
            engine_id = peers.identifier(expected_engine_id)
            drill = observer.faults.hit(c.FAILURE_MODE_HANDSHAKE, peers.address(host, port))
            if runtime.active:
                observer.handshakes.on_started(engine_id, start_ns, rehearsal=drill is not None)
        try:
            if drill is not None:
                observer.faults.fail_after_delay(drill)
            result = upstream._nixl_handshake(host, port, remote_tp_size, expected_engine_id, *args, **kwargs)
            failed = False
        except Exception as error:
            if runtime.active and drill is None:
                with _GUARD:
                    self._penstock_annotate(error, host, port)
            raise
        finally:
            with _GUARD:
                offset_ns = clock_offset_ns(result, time.monotonic_ns() - began)
                run = HandshakeRun(start_ns, time.time_ns(), offset_ns, drill is not None, failed)
                observer.handshakes.on_finished(engine_id, run if runtime.active else None)
        return result

    def _penstock_annotate(self, error: Exception, host: str, port: int) -> None:
        """Add to *error* what a failed handshake does not report: a closed port, the mismatched factors."""
        if failure_modes.is_silence(error):
            if port_probe.connection_refused(host, port):
                failure_modes.annotate(error, failure_modes.ExceptionNote(refused=True))
            return
        hashes = failure_modes.hashes_in(str(error))
        if hashes is not None:
            observer = self._penstock
            factors = observer.mismatched.explain(self, hashes[1]) if observer is not None else ()
            failure_modes.annotate(error, failure_modes.ExceptionNote(factors=factors))

    def _background_nixl_handshake(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_as_waiter(req_id, "_background_nixl_handshake", req_id, *args, **kwargs)

    def _penstock_as_waiter(self, request_id: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's *method*; *request_id* is the initiator of handshakes that it starts."""
        upstream: Any = super()
        observer = self._penstock
        if observer is None:
            return getattr(upstream, method)(*args, **kwargs)
        observer.context.waiter = request_id
        try:
            return getattr(upstream, method)(*args, **kwargs)
        finally:
            observer.context.waiter = ""


def clock_offset_ns(result: Any, took_ns: int) -> int | None:
    """Return the offset of the peer's monotonic clock from vLLM's handshake *result*; None if there is none.

    vLLM assumes that the peer answers in the middle of the round trip, so the error is at most half of it. An offset below
    half of *took_ns*, the duration of the handshake, is indistinguishable from 0 and returned as 0.
    """
    offset = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    if not isinstance(offset, float):
        return None
    offset_ns = int(offset * NANOS)
    return offset_ns if abs(offset_ns) > took_ns // 2 else 0
