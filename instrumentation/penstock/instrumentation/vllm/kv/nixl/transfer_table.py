"""Transfers that NIXL has begun and not ended, by handle."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.naming import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake

CAPACITY: Final = 65_536
"""Handles remembered; more than any engine has in flight, so that only handles nobody releases are forgotten."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer that vLLM is about to prepare and post.

    *rank* is the peer's; *blocks* are logical blocks of this rank, *size* their bytes (None where that is not known).
    """

    request_id: str = ""
    peer: Peer = field(default_factory=Peer)
    rank: int | None = None
    blocks: int = 0
    size: int | None = None


NO_PLAN: Final = PlannedTransfer()


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


class CallContext(threading.local):
    """What vLLM is doing on the calling thread.

    Attributes:
        waiter: the request for which it asks for a handshake.
        transfer: what it prepares and posts.
        reading: the request and ReqMeta that it starts to read for.
        handshake: whose end it is telling those who waited for it.

    """

    waiter: str = ""
    transfer: PlannedTransfer = NO_PLAN
    reading: tuple[str, Any] = ("", None)
    handshake: Handshake | None = None


def bytes_of(worker: Any, groups: Sequence[Sequence[int]]) -> int | None:
    """Return the bytes that *groups* hold on this rank, or None where blocks are not all of one kind.

    Args:
        worker: vLLM's NIXL worker, after it has registered its caches.
        groups: ids of kernel blocks, a list for each KV cache group.

    """
    lengths: list[int] = getattr(worker, "block_len_per_layer", None) or []
    if not lengths or getattr(worker, "_has_mamba", False):
        return None
    counts = [len(group) for group in groups]
    group_of: Sequence[int] = getattr(worker, "region_group_ids", None) or ()
    if len(counts) <= 1 or len(group_of) != len(lengths):
        # One group, or regions that all groups share.
        return sum(counts) * sum(lengths)
    if max(group_of) >= len(counts):
        return None
    # A negative group marks a region that several groups share.
    return sum(
        length * (counts[group] if group >= 0 else sum(counts))
        for group, length in zip(group_of, lengths, strict=True)
    )
