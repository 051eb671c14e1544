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
) -> TransferDigest | str:
    """Return the digest of a request, or why it has none: a rank is missing, or ranks with the same head differ.

    Args:
        ranks: what each rank has computed.
        blocks: the blocks that the request offers, by group.
        orders: the last of them, which were digested.

    """
    first = ranks[0]
    columns: dict[int, list[list[bytes]]] = {}
    for rank in ranks:
        for place, head in enumerate(rank.heads):
            column = [_column(digests, len(rank.heads), place) for digests in rank.groups]
            if columns.setdefault(head, column) != column:
                return "the ranks' copies of a KV head differ"
    if set(columns) != set(range(first.total)):
        return "ranks are missing"
    groups = []
    for number, order in enumerate(orders):
        covered = len(order.blocks)
        digests = b"".join(
            columns[head][number][block] for block in range(covered) for head in range(first.total)
        )
        groups.append(GroupDigest(blocks[number], order.tail, covered, digests))
    return TransferDigest(first.block_size, first.total, tuple(groups))


def _column(digests: bytes, heads: int, place: int) -> list[bytes]:
    """Return the digest of each block for the head in that *place* of a rank's *heads*."""
    step = heads * _WORD
    return [digests[at : at + _WORD] for at in range(place * _WORD, len(digests), step)]
