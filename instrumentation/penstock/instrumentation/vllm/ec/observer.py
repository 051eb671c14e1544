"""Emits what an EC connector does, as the wire's events and samples; collects how its attempts ended, for the scheduler."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.naming import UNKNOWN, Peer, failure_modes
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcTransfer

CAPACITY: Final = 4096
"""Results between two steps; beyond it the oldest is forgotten."""
_GUARD = guard("ec_observer")


@dataclass(frozen=True, slots=True)
class EcResult:
    """The end of one attempt.

    Attributes:
        cause: why it failed; None if it did not.
        arrived: whether the item came; without it and without a cause, the peer answered that it does not have it.

    """

    item: str
    peer: Peer
    cause: Cause | None = None
    arrived: bool = False


class EcResults:
    """The results since the last step. Any thread adds, the scheduler's drains; nothing blocks."""

    def __init__(self) -> None:
        self._queue: deque[EcResult] = deque(maxlen=CAPACITY)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def arrived(self, item: str, peer: Peer) -> None:
        """Add an item that came."""
        self._add(EcResult(item, peer, arrived=True))

    def missed(self, item: str, peer: Peer | None) -> None:
        """Add a peer's answer that it does not have an item."""
        if peer is not None:
            self._add(EcResult(item, peer))

    def failed(self, failure: EcFailure, *, rehearsal: bool) -> None:
        """Add a failed attempt, unless it says nothing; one for which the peer is not to blame is an answer like any other."""
        if failure.peer is None or failure.inconclusive:
            return
        cause = Cause(failure.mode, failure.error_type, rehearsal, failure.peer)
        self._add(EcResult(failure.item, failure.peer, None if failure.blameless else cause))

    def drain(self) -> list[EcResult]:
        """Return the results since the last call, in their order."""
        found = []
        while self._queue:
            found.append(self._queue.popleft())
        return found

    def _add(self, result: EcResult) -> None:
        if result.peer.address != UNKNOWN:
            self._queue.append(result)


class EcObserver:
    """Observes one connector in one process; any thread may call it, and no method raises.

    Attributes:
        connector: its class's name.
        component: ``COMPONENT_*``.
        rank: the worker's.

    """

    def __init__(
        self, connector: str, component: int, rank: int = 0, results: EcResults | None = None
    ) -> None:
        """Emit as *component* (``COMPONENT_*``) of *rank*; what becomes of the attempts is also added to *results*."""
        self.connector = connector
        self.component = component
        self.rank = rank
        self._results = results

    def received(self, transfer: EcTransfer) -> None:
        """Emit a received item, or a failed reception."""
        self._sample(transfer, c.DIRECTION_RECEIVE)
        if self._results is not None and transfer.ok and runtime.active:
            self._results.arrived(transfer.item, transfer.peer)

    def sent(self, transfer: EcTransfer) -> None:
        """Emit a sent item, or a failed sending."""
        self._sample(transfer, c.DIRECTION_SEND)

    def probed(
        self, item: str, peer: Peer | None, result: int, start_ns: int, end_ns: int, request_id: str
    ) -> None:
        """Emit a probe's result; only a failure's event names the item."""
        with _GUARD:
            if runtime.active:
                if self._results is not None and result == c.PROBE_RESULT_MISS:
                    self._results.missed(item, peer)
                address = (peer or Peer()).address
                runtime.emit_probe(end_ns, end_ns - start_ns, result, self.connector, address, request_id)

    def failed(
        self,
        failure: EcFailure,
        *,
        direction: int = c.DIRECTION_RECEIVE,
        rehearsal: bool = False,
        used: bool | None = None,
    ) -> None:
        """Emit a failed attempt; *used*: whether an item that differs from its checksum is used, None if that is not what failed."""
        rehearsal = rehearsal or failure.rehearsal
        with _GUARD:
            if runtime.active:
                if self._results is not None:
                    self._results.failed(failure, rehearsal=rehearsal)
                fields: dict[str, Any] = {
                    "channel": c.CHANNEL_EC,
                    "connector": self.connector,
                    "direction": direction,
                    "mode": failure.mode,
                    "error_type": failure.error_type,
                    "peer": (failure.peer or Peer()).fields(),
                    "error_class": failure.error_class,
                    "error_text": failure_modes.cut(failure.text),
                    "start_time_unix_nano": failure.start_ns,
                    "item": failure.item,
                }
                if used is not None:
                    fields |= {"compared": 1, "mismatched": 1, "used": used}
                runtime.emit_event(
                    "transfer_failure",
                    fields,
                    component=self.component,
                    rank=self.rank,
                    request_id=failure.request_id,
                    rehearsal=rehearsal,
                )

    def _sample(self, transfer: EcTransfer, direction: int) -> None:
        with _GUARD:
            if runtime.active:
                runtime.emit_transfer(
                    transfer.end_ns,
                    transfer.end_ns - transfer.start_ns,
                    transfer.bytes,
                    1,
                    0,
                    transfer.uncertainty_ns,
                    c.CHANNEL_EC,
                    direction,
                    c.TRANSFER_RESULT_OK if transfer.ok else c.TRANSFER_RESULT_ERROR,
                    self.component,
                    self.rank,
                    self.connector,
                    transfer.peer.address,
                    transfer.peer.engine_id,
                    transfer.request_id,
                )
