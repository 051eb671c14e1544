"""The mixin over a pushing NIXL worker's registrations and writes, which run on its writer thread."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl import upstream_counts
from penstock.instrumentation.vllm.kv.nixl.handshake_mixin import NixlHandshakeMixin
from penstock.instrumentation.vllm.naming import failure_modes

_GUARD = guard("nixl")

_NO_AGENTS = "vLLM has dropped the peer since their handshake, and fails the load"


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
