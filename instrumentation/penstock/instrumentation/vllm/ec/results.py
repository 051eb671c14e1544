"""How attempts to get encoder outputs ended, from the connector's threads to the scheduler's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.naming import UNKNOWN, Peer
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.ec.protocol import EcFailure

CAPACITY: Final = 4096
"""Results between two steps; beyond it the oldest is forgotten."""


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
