"""The mixins over an ``ECCPUScheduler`` and its sessions: with producers, and a producer's with consumers; on the scheduler's thread.

:class:`Grants` are the reads that a producer grants, how they end, and the requests that it refuses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import LAST_WORDS_SECONDS, runtime
from penstock.instrumentation.vllm.ec import EcFailure, EcObserver, EcTransfer
from penstock.instrumentation.vllm.ec.cpu.reads import RehearsedError
from penstock.instrumentation.vllm.naming import Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.vllm.ec.cpu.loads import CpuLoads
    from penstock.instrumentation.vllm.requests import Cause

_GUARD = guard("ec_cpu")


class CpuSchedulerMixin:
    """Over the connector's scheduler."""

    _penstock_loads: CpuLoads | None = None

    # Set by vLLM's ECCPUScheduler.
    _sessions: dict[Any, Any]

    def _admit_item(self, request: Any, feature: Any, num_computed_tokens: int, now: float) -> bool:
        upstream: Any = super()
        loads = self._penstock_loads
        if loads is not None:
            loads.asking = request.request_id
        return bool(upstream._admit_item(request, feature, num_computed_tokens, now))

    def _start_xfer(
        self, mm_hash: str, info: dict[str, Any], size_bytes: int, *args: Any, **kwargs: Any
    ) -> bool:
        """Let a fault drill hit the read; vLLM takes an exception for one that cannot be started, and False for one without room."""
        upstream: Any = super()
        loads = self._penstock_loads
        if loads is not None and not self._penstock_may_begin(loads, mm_hash, info):
            return False
        started = bool(upstream._start_xfer(mm_hash, info, size_bytes, *args, **kwargs))
        if loads is not None and started:
            with _GUARD:
                session = self._sessions[info["peer_host"], int(info["peer_port"])]
                loads.on_asked(mm_hash, info, size_bytes, session)
        return started

    @staticmethod
    def _penstock_may_begin(loads: CpuLoads, item: str, info: dict[str, Any]) -> bool:
        rehearsed: RehearsedError | None = None
        with _GUARD:
            try:
                return loads.before_read(item, info)
            except RehearsedError as error:
                rehearsed = error
        if rehearsed is not None:
            raise rehearsed
        return True

    def _fail_or_fallback(self, request: Any, feature: Any, why: str) -> bool:
        """Let a policy decide about an item that cannot be had; without one report what vLLM does."""
        upstream: Any = super()
        loads, item = self._penstock_loads, feature.identifier
        cause: Cause | None = None
        decision: bool | None = None
        if loads is not None:
            with _GUARD:
                cause = loads.on_unavailable(request, item, why)
                decision = loads.decide(request, item, cause)
        if loads is not None and decision is False:
            with _GUARD:
                loads.end_wait(request, item)
            return False
        falls_back = bool(upstream._fail_or_fallback(request, feature, why))
        if loads is not None and cause is not None and decision is None:
            with _GUARD:
                loads.on_decided_by_vllm(request, item, cause, falls_back=falls_back)
        return falls_back


class ConsumerSessionMixin:
    """Over a ``ConsumerSession``: one producer's answers, and the reads from it."""

    _penstock_loads: CpuLoads | None = None
    _penstock_down = False
    _penstock_looked_ns = 0
    # The item whose answer is being applied.
    _penstock_item = ""

    # Set by vLLM's ConsumerSession.
    _xfers: dict[str, Any]

    def _dispatch_ack(self, ack: Any) -> None:
        upstream: Any = super()
        loads = self._penstock_loads
        waiting = self._xfers.get(ack.mm_hash)
        if loads is None or waiting is None or waiting.transfer_handle is not None:
            upstream._dispatch_ack(ack)
            return
        self._penstock_item = ack.mm_hash
        try:
            upstream._dispatch_ack(ack)
        except Exception as error:
            with _GUARD:
                loads.on_broken(ack.mm_hash, error)
                # vLLM does not contain it: the engine ends.
                runtime.flush(LAST_WORDS_SECONDS)
            raise
        with _GUARD:
            began = waiting.transfer_handle is not None
            loads.on_answer(ack.mm_hash, ack.status.name, began=began)

    def _ensure_registered(self, metadata: bytes, mem_descriptor: bytes) -> str:
        upstream: Any = super()
        try:
            name: str = upstream._ensure_registered(metadata, mem_descriptor)
        except Exception as error:
            if self._penstock_loads is not None:
                with _GUARD:
                    self._penstock_loads.on_error(self._penstock_item, c.FAILURE_MODE_HANDSHAKE, error)
            raise
        return name

    def take_results(self) -> Any:
        """Report the reads that have ended."""
        upstream: Any = super()
        results = upstream.take_results()
        loads = self._penstock_loads
        if loads is not None:
            with _GUARD:
                looked_ns, self._penstock_looked_ns = self._penstock_looked_ns, time.time_ns()
                loads.on_results(results, peer_is_down=self._penstock_down, looked_ns=looked_ns)
        return results

    def on_peer_down(self) -> None:
        """Record that the connection was lost; the reads' results follow."""
        upstream: Any = super()
        self._penstock_down = True
        upstream.on_peer_down()


_INCOMPATIBLE: Final = frozenset({"NACK_INCOMPAT", "NACK_VERSION"})


class Grants:
    """The grants of one producer; on its scheduler's thread. A request does not say where it comes from: the peer is unknown."""

    def __init__(self, observer: EcObserver, block_size: int) -> None:
        """Report to *observer*; *block_size* is the bytes of a block of the shared memory."""
        self._observer = observer
        self._block_size = block_size
        # By vLLM's key of a grant, bounded by vLLM's own table.
        self._began: dict[str, int] = {}

    def on_answer(self, request: Any, answer: Any) -> None:
        """Record a grant, or report that a consumer was refused for what it is."""
        if answer.status.name == "OK":
            self._began[f"{request.session_id}:{request.mm_hash}"] = time.time_ns()
        elif answer.status.name in _INCOMPATIBLE:
            text = (
                f"a consumer is answered {answer.status.name}: its vLLM, model, type or block size is another"
            )
            failure = EcFailure(
                request.mm_hash, c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE, text, peer=Peer()
            )
            self._observer.failed(failure, direction=c.DIRECTION_SEND)

    def on_ended(self, before: Mapping[str, Any], after: Mapping[str, Any], *, ok: bool) -> None:
        """Report the grants that are gone: read, or not *ok*, run out."""
        now = time.time_ns()
        for key, grant in before.items():
            if key in after:
                continue
            start_ns = self._began.pop(key, now)
            nbytes = len(grant.block_indices) * self._block_size if ok else 0
            # The consumer has read it some time before it says so.
            sent = EcTransfer(
                grant.mm_hash, Peer(), start_ns, now, nbytes, ok, uncertainty_ns=max(now - start_ns, 0)
            )
            self._observer.sent(sent)
            if not ok:
                text = "the consumer has not said within the lease that it has read the item"
                failure = EcFailure(
                    grant.mm_hash,
                    c.FAILURE_MODE_EXPIRED,
                    c.ERROR_TYPE_TIMEOUT,
                    text,
                    peer=Peer(),
                    start_ns=start_ns,
                )
                self._observer.failed(failure, direction=c.DIRECTION_SEND)


class ProducerSessionMixin:
    """Over a ``ProducerSession``."""

    _penstock_grants: Grants | None = None

    # Set by vLLM's ProducerSession.
    _active_xfers: dict[str, Any]

    def _grant_or_nack(self, req: Any) -> Any:
        upstream: Any = super()
        answer = upstream._grant_or_nack(req)
        grants = self._penstock_grants
        if grants is not None:
            with _GUARD:
                grants.on_answer(req, answer)
        return answer

    def _drain_notifs(self) -> None:
        upstream: Any = super()
        before = self._active_xfers.copy()
        upstream._drain_notifs()
        self._penstock_ended(before, ok=True)

    def _sweep_timeouts(self) -> None:
        upstream: Any = super()
        before = self._active_xfers.copy()
        upstream._sweep_timeouts()
        self._penstock_ended(before, ok=False)

    def _penstock_ended(self, before: dict[str, Any], *, ok: bool) -> None:
        grants = self._penstock_grants
        if grants is not None and len(before) != len(self._active_xfers):
            with _GUARD:
                grants.on_ended(before, self._active_xfers, ok=ok)
