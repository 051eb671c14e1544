"""How much of the KV cache a transfer concerns: bytes of blocks, from what a NIXL worker has registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


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
