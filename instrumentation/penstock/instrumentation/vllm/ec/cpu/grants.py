"""A producer's side of an ``ECCPUConnector``: the reads that it grants, how they end, and the requests that it refuses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.ec import EcFailure, EcObserver, EcTransfer
from penstock.instrumentation.vllm.naming import Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

_GUARD = guard("ec_cpu")
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
            self._observer.sent(EcTransfer(grant.mm_hash, Peer(), start_ns, now, nbytes, ok))
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
