"""The mixin over a NIXL worker's handshakes: who asks for one, how it goes, what its failure means."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import compatibility, port_probe
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
        observer = self._penstock
        if observer is not None and future is not None and runtime.active:
            with _GUARD:
                peer = peers.named(host, port, engine_id)
                new = observer.handshakes.join(peer, observer.here.waiter, future, queued_ns)
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
                observer.handshakes.begins(engine_id, start_ns, rehearsal=drill is not None)
        try:
            if drill is not None:
                observer.faults.strike(drill)
            result = upstream._nixl_handshake(host, port, remote_tp_size, expected_engine_id, *args, **kwargs)
            failed = False
        except Exception as error:
            if runtime.active and drill is None:
                with _GUARD:
                    self._penstock_look_into(error, host, port)
            raise
        finally:
            with _GUARD:
                offset_ns = clock_offset_ns(result, time.monotonic_ns() - began)
                run = HandshakeRun(start_ns, time.time_ns(), offset_ns, drill is not None, failed)
                observer.handshakes.ran(engine_id, run if runtime.active else None)
        return result

    def _penstock_look_into(self, error: Exception, host: str, port: int) -> None:
        """Find out what a failed handshake does not say: a closed port, the factors that do not fit."""
        if failure_modes.is_silence(error):
            if port_probe.refuses(host, port):
                failure_modes.annotate(error, failure_modes.ExceptionNote(refused=True))
            return
        hashes = failure_modes.hashes_in(str(error))
        if hashes is not None:
            factors = compatibility.explain(self, hashes[1])
            failure_modes.annotate(error, failure_modes.ExceptionNote(factors=factors))

    def _background_nixl_handshake(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_for(req_id, "_background_nixl_handshake", req_id, *args, **kwargs)

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


def clock_offset_ns(result: Any, took_ns: int) -> int | None:
    """Return the offset of the peer's monotonic clock that vLLM's handshake gives beside its agents, None where there is none.

    vLLM takes the peer's answer for made in the middle of the round trip, so it is wrong by half of that at most. The whole
    handshake took *took_ns*: an offset of less than half of it is not told from 0, which it is on one machine.
    """
    offset = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    if not isinstance(offset, float):
        return None
    offset_ns = int(offset * NANOS)
    return offset_ns if abs(offset_ns) > took_ns // 2 else 0
