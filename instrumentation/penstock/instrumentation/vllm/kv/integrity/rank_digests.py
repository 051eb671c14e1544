"""Joins the digests of the tensor-parallel ranks, each of its own KV heads, to those of all heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.vllm.messages import GroupDigest, TransferDigest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.messages import GroupBlocks, RankDigest

_WORD: Final = 8


def join_ranks(
    ranks: Sequence[RankDigest], blocks: Sequence[int], orders: Sequence[GroupBlocks]
) -> TransferDigest | None:
    """Return the digest of a request, or None if a head of the model has none.

    Args:
        ranks: what each rank has computed.
        blocks: the blocks that the request offers, by group.
        orders: the last of them, which were digested.

    """
    first = ranks[0]
    rank_of = {head: (rank, place) for rank in reversed(ranks) for place, head in enumerate(rank.heads)}
    if set(rank_of) != set(range(first.total)):
        return None
    groups = []
    for number, order in enumerate(orders):
        parts = []
        for block in range(len(order.blocks)):
            for head in range(first.total):
                rank, place = rank_of[head]
                at = (block * len(rank.heads) + place) * _WORD
                parts.append(rank.groups[number][at : at + _WORD])
        digests = b"".join(parts)
        groups.append(GroupDigest(blocks[number], order.tail, len(order.blocks), digests))
    return TransferDigest(first.block_size, first.total, tuple(groups))
