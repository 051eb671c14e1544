"""The mixins over a NIXL worker's handshakes and over a pushing worker's registrations and writes, which run on its writer thread.

Who asks for a handshake, its duration and result, the cause of its failure. Whether a peer that did not answer refuses connections
is tested here, since ZeroMQ does not report it.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import upstream_counts
from penstock.instrumentation.vllm.kv.nixl.handshake_table import HandshakeRun
from penstock.instrumentation.vllm.naming import failure_modes, peers
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake, OtherAddress
    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver

_PROBE_DEADLINE: Final = 0.5
"""Seconds for one attempt to connect, name resolution included."""

_probing = threading.BoundedSemaphore(1)
_asking = threading.BoundedSemaphore(1)
_GUARD = guard("nixl")
_NO_AGENTS = "vLLM has dropped the peer since their handshake, and fails the load"


def connection_refused(host: str, port: int, deadline: float = _PROBE_DEADLINE) -> bool:
    """Return whether *host* refuses a connection to *port*; False if it accepts, is silent or exceeds *deadline* (seconds).

    Name resolution has no deadline, so the attempt runs on a daemon thread of its own; while one hangs, further calls
    return False at once.
    """
    if not _probing.acquire(blocking=False):
        return False
    refused: list[bool] = []
    thread = threading.Thread(
        target=_probe_port, args=(host, port, deadline, refused), name="penstock-reach", daemon=True
    )
    try:
        thread.start()
    except BaseException:
        _probing.release()
        raise
    thread.join(deadline)
    return bool(refused)


def _probe_port(host: str, port: int, deadline: float, refused: list[bool]) -> None:
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=deadline):
            pass
    except ConnectionRefusedError:
        refused.append(True)
    except (OSError, ValueError):
        pass
    finally:
        _probing.release()


class _AnsweredError(Exception):
    """A second handshake has told which NIXL agent answers."""

    def __init__(self, metadata: bytes) -> None:
        """Keep the agent's *metadata*."""
        super().__init__()
        self.metadata = metadata


class _SecondHandshake:
    """Stands in for a worker in vLLM's own handshake, which ends with the first answer and registers nothing."""

    def __init__(self, worker: Any) -> None:
        """Stand in for *worker*."""
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        """Return what the worker has."""
        return getattr(self._worker, name)

    def add_remote_agent(self, metadata: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Raise what an engine has answered."""
        raise _AnsweredError(metadata.agent_metadata)

    _add_notif_only_remote_agent = add_remote_agent


def _ask(question: Callable[[], None]) -> None:
    """Ask on a thread of its own, which releases the right to ask: a silent address takes vLLM's five seconds."""

    def ask() -> None:
        try:
            with _GUARD:
                question()
        finally:
            _asking.release()

    try:
        threading.Thread(target=ask, name="penstock-who", daemon=True).start()
    except BaseException:
        _asking.release()
        raise


def _owner_of(nixl_handshake: Any, handshake: Handshake, other: OtherAddress) -> int | None:
    """Return ``ADDRESS_OWNER_*`` of an address by a second handshake with it; None if another engine id answers there.

    Args:
        nixl_handshake: vLLM's method, bound to the worker.
        handshake: the one by which the engine id is known.
        other: the address.

    """
    worker, engine_id = nixl_handshake.__self__, handshake.peer.engine_id
    if handshake.arguments is None:
        return c.ADDRESS_OWNER_UNSPECIFIED
    ranks, args, kwargs = handshake.arguments
    try:
        nixl_handshake.__func__(_SecondHandshake(worker), *other.target, ranks, engine_id, *args, **kwargs)
    except _AnsweredError as answered:
        # NIXL's bindings give names as bytes, and its metadata begins with the agent's.
        names = (worker._remote_agents.get(engine_id) or {}).values()
        known = [each if isinstance(each, bytes) else str(each).encode() for each in names]
        if not known:
            return c.ADDRESS_OWNER_UNSPECIFIED
        same = any(each in answered.metadata for each in known)
        return c.ADDRESS_OWNER_SAME if same else c.ADDRESS_OWNER_OTHER
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises is classified
        error_type = failure_modes.classify("handshake_setup_failed", error).error_type
        if error_type == c.ERROR_TYPE_WRONG_ENGINE:
            return None
        # The known engine has shaken hands: what does not fit is another one.
        if error_type == c.ERROR_TYPE_INCOMPATIBLE:
            return c.ADDRESS_OWNER_OTHER
    return c.ADDRESS_OWNER_UNSPECIFIED


class NixlHandshakeMixin:
    """Over the connector's worker, pull or push. Each method has the signature of the one it extends."""

    _penstock: NixlObserver | None = None

    def _ensure_handshake(self, engine_id: str, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        queued_ns = time.time_ns()
        future = upstream._ensure_handshake(engine_id, host, port, *args, **kwargs)
        if future is not None:
            self._penstock_join_handshake(engine_id, host, port, future, queued_ns)
        else:
            self._penstock_check_address(engine_id, host, port)
        return future

    def _penstock_check_address(self, engine_id: str, host: str, port: int, request_id: str = "") -> None:
        """Note that vLLM, which knows an engine id, is asked to reach it at an address; *request_id*: to read its blocks from."""
        observer = self._penstock
        if observer is None or not runtime.active:
            return
        with _GUARD:
            met = observer.handshakes.meet(peers.named(host, port, engine_id), (host, port), time.time_ns())
            if met is None:
                return
            handshake, other = met
            if request_id:
                observer.on_misread(request_id, handshake, other)
            known = handshake.arguments is not None
            if known and other.is_due(time.time_ns()) and _asking.acquire(blocking=False):
                other.asked_ns = time.time_ns()
                upstream: Any = super()._nixl_handshake  # type: ignore[misc]
                _ask(lambda: observer.on_owner_known(handshake, other, _owner_of(upstream, handshake, other)))

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
                arguments = (remote_tp_size, args, kwargs)
                run = HandshakeRun(start_ns, time.time_ns(), offset_ns, drill is not None, failed, arguments)
                observer.handshakes.on_finished(engine_id, run if runtime.active else None)
        return result

    def _penstock_annotate(self, error: Exception, host: str, port: int) -> None:
        """Add to *error* what a failed handshake does not report: a closed port, the mismatched factors."""
        if failure_modes.is_silence(error):
            if connection_refused(host, port):
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


class NixlPushMixin(NixlHandshakeMixin):
    """Over the connector's worker. A pull worker calls none of these methods."""

    def _send_registration_to_p(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._penstock_as_waiter(req_id, "_send_registration_to_p", req_id, *args, **kwargs)

    def _do_send_reg_notif(self, req_id: str, reg_data: dict[str, Any]) -> None:
        upstream: Any = super()
        observer = self._penstock
        if observer is not None:
            # Also while paused: a peer must never write to the blocks of a failed load.
            if not observer.cancellations.try_register(req_id):
                return
            if runtime.active:
                with _GUARD:
                    self._penstock_report_no_agents(req_id, reg_data)
        upstream._do_send_reg_notif(req_id, reg_data)

    def _penstock_report_no_agents(self, request_id: str, registration: dict[str, Any]) -> None:
        """Report a load that vLLM is about to fail without logging it, because it has no agent of the peer."""
        observer: Any = self._penstock
        worker: Any = self
        engine_id = registration["remote_engine_id"]
        if not worker._remote_agents.get(engine_id):
            observer.counts.saw(upstream_counts.NOTIFICATIONS)
            failure = failure_modes.Failure(
                c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_REMOTE_RESET, "push_reg_no_agents", "", _NO_AGENTS
            )
            meta = (getattr(worker, "_recving_metadata", None) or {}).get(request_id)
            observer.on_failure(failure, request_id, meta=meta, direction=c.DIRECTION_RECEIVE)

    def _do_start_push_kv(self, request_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._penstock_as_waiter(request_id, "_do_start_push_kv", request_id, *args, **kwargs)
        except Exception as error:
            # vLLM's writer thread logs the error and continues; the reader waits for a write that never comes.
            observer = self._penstock
            if observer is not None and runtime.active:
                with _GUARD:
                    failure = failure_modes.classify("push_setup_failed", error)
                    observer.on_failure(failure, request_id, direction=c.DIRECTION_SEND)
            raise
