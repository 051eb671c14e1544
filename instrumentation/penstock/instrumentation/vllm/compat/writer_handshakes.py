"""Until 0.26: a pushing NIXL worker's writer shakes hands itself and waits for it, and only logs an error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.compat.difference import Difference

_GUARD = guard("nixl")


class _Failure(threading.local):
    """What this thread's handshake failed with, while somebody asks."""

    asked = False
    error: Exception | None = None


class WriterHandshakes(Difference):
    """Shows such a handshake as one that others wait for, as ``_ensure_handshake`` of a newer vLLM does."""

    # Set by vLLM's worker: its peers' agents, by engine.
    _remote_agents: dict[str, Any]

    _penstock_failure = _Failure()

    @classmethod
    def is_needed(cls, owner: type) -> bool:
        """Return whether *owner* is a NIXL worker with such a writer."""
        return hasattr(owner, "_ensure_d_handshake")

    def _penstock_join_handshake(
        self, engine_id: str, host: str, port: int, ended: Any, queued_ns: int
    ) -> None:
        """Take a handshake with its future; Penstock's mixin does."""

    def _ensure_d_handshake(
        self, decode_engine_id: str, decode_host: str, decode_port: int, *args: Any, **kwargs: Any
    ) -> Any:
        upstream: Any = super()
        if decode_engine_id in self._remote_agents:
            return upstream._ensure_d_handshake(decode_engine_id, decode_host, decode_port, *args, **kwargs)
        failure, ended = self._penstock_failure, Future[None]()
        with _GUARD:
            self._penstock_join_handshake(decode_engine_id, decode_host, decode_port, ended, time.time_ns())
        failure.asked = True
        try:
            return upstream._ensure_d_handshake(decode_engine_id, decode_host, decode_port, *args, **kwargs)
        finally:
            error, failure.asked, failure.error = failure.error, False, None
            with _GUARD:
                if error is None:
                    ended.set_result(None)
                else:
                    ended.set_exception(error)

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> Any:
        upstream: Any = super()
        try:
            return upstream._nixl_handshake(*args, **kwargs)
        except Exception as error:
            if self._penstock_failure.asked:
                self._penstock_failure.error = error
            raise
