"""Transfers that NIXL has begun and not ended, by handle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.nixl.nixl_context import PlannedTransfer
    from penstock.instrumentation.vllm.naming import Peer

CAPACITY: Final = 65_536
"""Handles remembered; more than any engine has in flight, so that only handles nobody releases are forgotten."""


@dataclass(frozen=True, slots=True)
class PostedTransfer:
    """One transfer: what was planned, and since when it runs (wall clock in nanoseconds)."""

    plan: PlannedTransfer
    direction: int
    start_ns: int


class TransferTable:
    """The handles in flight. Any thread may begin and end one; a handle's address is used again at once after that.

    A handle is known by its address and not held: whoever drops it last releases it.
    """

    def __init__(self) -> None:
        self._open: dict[int, PostedTransfer] = {}

    def begin(self, handle: Any, posted: PostedTransfer) -> None:
        """Note that a transfer is posted."""
        if len(self._open) >= CAPACITY:
            self._open.pop(next(iter(self._open)), None)
        self._open[address(handle)] = posted

    def get(self, handle: Any) -> PostedTransfer | None:
        """Return a transfer that was begun and has not ended."""
        return self._open.get(address(handle))

    def end(self, handle: Any) -> PostedTransfer | None:
        """Forget a transfer and return it; None if it was not begun or has ended."""
        return self._open.pop(address(handle), None)

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, how many, oldest start) of what is in flight now."""
        groups: dict[Peer, tuple[int, int]] = {}
        for posted in self._open.copy().values():
            count, oldest = groups.get(posted.plan.peer, (0, posted.start_ns))
            groups[posted.plan.peer] = (count + 1, min(oldest, posted.start_ns))
        return [(peer, count, oldest) for peer, (count, oldest) in groups.items()]


def address(handle: Any) -> int:
    """Return what a handle is known by."""
    return handle if isinstance(handle, int) else id(handle)
