"""Transfers that NIXL has begun and not ended, by handle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.peers import Peer

CAPACITY: Final = 65_536
"""Handles remembered; more than any engine has in flight, so that only handles nobody releases are forgotten."""


@dataclass(frozen=True, slots=True)
class Posted:
    """One transfer: whose it is, with whom, and since when (wall clock in nanoseconds)."""

    request_id: str
    peer: Peer
    direction: int
    start_ns: int


class Transfers:
    """The handles in flight. Any thread may begin and end one; a handle's address is used again at once after that.

    A handle is known by its address and not held: whoever drops it last releases it.
    """

    def __init__(self) -> None:
        self._open: dict[int, Posted] = {}

    def begin(self, handle: Any, posted: Posted) -> None:
        """Note that a transfer is posted."""
        if len(self._open) >= CAPACITY:
            self._open.pop(next(iter(self._open)), None)
        self._open[_address(handle)] = posted

    def end(self, handle: Any) -> Posted | None:
        """Forget a transfer and return it; None if it was not begun or has ended."""
        return self._open.pop(_address(handle), None)

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, how many, oldest start) of what is in flight now."""
        groups: dict[Peer, tuple[int, int]] = {}
        for posted in self._open.copy().values():
            count, oldest = groups.get(posted.peer, (0, posted.start_ns))
            groups[posted.peer] = (count + 1, min(oldest, posted.start_ns))
        return [(peer, count, oldest) for peer, (count, oldest) in groups.items()]


def _address(handle: Any) -> int:
    return handle if isinstance(handle, int) else id(handle)
