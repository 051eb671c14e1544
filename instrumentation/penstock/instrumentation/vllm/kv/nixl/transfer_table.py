"""Transfers of a NIXL worker: planned on a thread, posted, and in flight by handle; their size in bytes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.instrumentation.vllm.naming import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.kv.nixl.handshake_table import Handshake

_T = TypeVar("_T")

HANDLES_MAX: Final = 65_536
"""Handles kept; more than an engine has in flight, so that only leaked handles are forgotten."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer that vLLM is about to prepare and post.

    *rank* is the peer's; *blocks* are logical blocks of this rank, *size* the bytes of them that this transfer moves (None if
    unknown): with several ranks at the peer each has a transfer of its own, of a part of every block.
    """

    request_id: str = ""
    peer: Peer = field(default_factory=Peer)
    rank: int | None = None
    blocks: int = 0
    size: int | None = None


NO_PLAN: Final = PlannedTransfer()


@dataclass(slots=True)
class PostedTransfer:
    """One posted transfer.

    Attributes:
        start_ns: wall clock in nanoseconds.
        running_ns: the newest time at which it was known to be still running; 0 before the first look.

    """

    plan: PlannedTransfer
    direction: int
    start_ns: int
    running_ns: int = 0

    def end_uncertainty_ns(self, duration_ns: int, post_ns: int) -> int:
        """Return by how much the end may have been before it was seen, *duration_ns* after the start.

        It came after the posting, which took *post_ns*, and after the look that found the transfer still running.
        """
        least = max(post_ns, self.running_ns - self.start_ns)
        return min(max(duration_ns - least, 0), duration_ns)


class TransferTable:
    """The handles in flight, and those that have completed but are not released, by address. Thread-safe.

    The table holds no reference: the last reference to a handle releases it, and its address may be reused at once.
    """

    def __init__(self) -> None:
        self._open: dict[int, PostedTransfer] = {}
        self._completed: dict[int, PlannedTransfer] = {}

    def add(self, handle: Any, posted: PostedTransfer) -> None:
        """Add a posted transfer."""
        key = handle_key(handle)
        self._completed.pop(key, None)
        _insert(self._open, key, posted)

    def plan_of(self, handle: Any) -> PlannedTransfer:
        """Return the transfer of a handle that is not released; :data:`NO_PLAN` for others."""
        key = handle_key(handle)
        posted = self._open.get(key)
        return posted.plan if posted is not None else self._completed.get(key, NO_PLAN)

    def saw_running(self, handle: Any, now_ns: int) -> None:
        """Note that a look at *now_ns* or later found a transfer still running; 0 changes nothing."""
        posted = self._open.get(handle_key(handle))
        if posted is not None and now_ns:
            posted.running_ns = now_ns

    def complete(self, handle: Any) -> PostedTransfer | None:
        """Return the transfer of a handle in flight, which has completed; None for others.

        It is in flight no more, but stays known until :meth:`pop`: its release may be refused.
        """
        key = handle_key(handle)
        posted = self._open.pop(key, None)
        if posted is not None:
            _insert(self._completed, key, posted.plan)
        return posted

    def pop(self, handle: Any) -> PostedTransfer | None:
        """Forget a handle; return its transfer if that is in flight, else None."""
        key = handle_key(handle)
        self._completed.pop(key, None)
        return self._open.pop(key, None)

    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, number of transfers, oldest start) for each peer with transfers in flight."""
        groups: dict[Peer, tuple[int, int]] = {}
        for posted in self._open.copy().values():
            count, oldest = groups.get(posted.plan.peer, (0, posted.start_ns))
            groups[posted.plan.peer] = (count + 1, min(oldest, posted.start_ns))
        return [(peer, count, oldest) for peer, (count, oldest) in groups.items()]


def _insert(table: dict[int, _T], key: int, value: _T) -> None:
    if len(table) >= HANDLES_MAX:
        table.pop(next(iter(table)), None)
    table[key] = value


def handle_key(handle: Any) -> int:
    """Return the key of a handle: itself if it is an address, else its identity."""
    return handle if isinstance(handle, int) else id(handle)


class CallContext(threading.local):
    """What vLLM is doing on the calling thread; NIXL's own calls do not name the request.

    Attributes:
        waiter: the request for which it asks for a handshake.
        transfer: the transfer that it prepares and posts, or polls.
        reading: the request that it starts to read for, with its ReqMeta.
        handshake: the finished handshake whose waiting requests it is notifying.
        given_up: the request whose load was cancelled before, and fails now or is not read.

    """

    waiter: str = ""
    transfer: PlannedTransfer = NO_PLAN
    reading: tuple[str, Any] = ("", None)
    handshake: Handshake | None = None
    given_up: str = ""


def bytes_of_blocks(worker: Any, groups: Sequence[Sequence[int]]) -> int | None:
    """Return the bytes of *groups* of blocks on this rank; None if their sizes differ or are unknown.

    Args:
        worker: vLLM's NIXL worker, after it has registered its caches.
        groups: ids of kernel blocks, one list for each KV cache group.

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


def pieces_of_block(worker: Any, engine_id: str) -> int | None:
    """Return in how many transfers a block of this rank moves from or to a peer, one for each of several ranks there.

    Each transfer has the heads of its rank, an equal part of the block. None if that holds for some layers only.
    """
    mapping = (getattr(worker, "tp_mappings", None) or {}).get(engine_id)
    if mapping is None or getattr(worker, "use_mla", False):
        return 1
    pieces = len(mapping.all_source_ranks)
    return None if pieces > 1 and any(getattr(worker, "_region_is_mla", ())) else max(pieces, 1)
