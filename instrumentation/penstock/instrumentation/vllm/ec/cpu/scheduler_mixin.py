"""The mixins over an ``ECCPUScheduler`` and its sessions with producers; on the scheduler's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import LAST_WORDS_SECONDS, runtime
from penstock.instrumentation.vllm.ec.cpu.reads import RehearsedError

if TYPE_CHECKING:
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
                loads.on_results(results, peer_is_down=self._penstock_down)
        return results

    def on_peer_down(self) -> None:
        """Record that the connection was lost; the reads' results follow."""
        upstream: Any = super()
        self._penstock_down = True
        upstream.on_peer_down()
