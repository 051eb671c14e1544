"""The digest of a request's KV: joined from its tensor-parallel ranks, and as it travels in ``kv_transfer_params``.

Each rank digests its own KV heads. In the parameters it is JSON values, of a version, bounded:

    "penstock_digest": {"v": 1, "block_size": 16, "heads": 8, "groups": [{"blocks": 4, "tail": 16, "digests": "<base64>"}]}

vLLM hands the parameters on as they are, and connectors ignore what they do not know. They come from a client here, so nothing is
believed before it is checked.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.messages import GroupDigest, TransferDigest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.messages import GroupBlocks, RankDigest

KEY: Final = "penstock_digest"
DIGESTS_MAX: Final = 4_096
"""Digests of one request: 32 KiB, 43 KiB as base64. Of a longer one only the last blocks are covered."""

_VERSION: Final = 1
_GROUPS_MAX: Final = 64
_HEADS_MAX: Final = 1_024
_BLOCKS_MAX: Final = 1 << 24
_WORD: Final = 8
_PROBLEM_MAX: Final = 256


def encode_digest(digest: TransferDigest) -> dict[str, Any]:
    """Return the value of :data:`KEY`."""
    return {
        "v": _VERSION,
        "block_size": digest.block_size,
        "heads": digest.heads,
        "groups": [
            {
                "blocks": group.blocks,
                "tail": group.tail,
                "digests": base64.b64encode(group.digests).decode("ascii"),
            }
            for group in digest.groups
        ],
    }


def encode_problem(problem: str) -> dict[str, Any]:
    """Return the value of :data:`KEY` of a request that was to be digested and could not be."""
    return {"v": _VERSION, "problem": problem[:_PROBLEM_MAX]}


def decode_digest(value: Any) -> TransferDigest | str:
    """Return the digest that a value of :data:`KEY` stands for, or why it stands for none."""
    if not isinstance(value, Mapping) or value.get("v") != _VERSION:
        return "the digest is none of this version of Penstock"
    problem = value.get("problem")
    if isinstance(problem, str):
        return f"the sender has no digest: {problem[:_PROBLEM_MAX]}"
    return _digest(value) or "the digest cannot be read"


def _digest(value: Mapping[str, Any]) -> TransferDigest | None:
    groups = value.get("groups")
    heads, size = _number(value.get("heads"), _HEADS_MAX), _number(value.get("block_size"), _BLOCKS_MAX)
    if not heads or not size or not isinstance(groups, list) or not 0 < len(groups) <= _GROUPS_MAX:
        return None
    found = [group for each in groups if (group := _group(each, heads, size)) is not None]
    fits = sum(group.covered for group in found) * heads <= DIGESTS_MAX
    return TransferDigest(size, heads, tuple(found)) if fits and len(found) == len(groups) else None


def _group(value: Any, heads: int, block_size: int) -> GroupDigest | None:
    if not isinstance(value, Mapping):
        return None
    blocks, tail = _number(value.get("blocks"), _BLOCKS_MAX), _number(value.get("tail"), block_size)
    text = value.get("digests")
    if blocks is None or tail is None or not isinstance(text, str) or len(text) > 2 * DIGESTS_MAX * _WORD:
        return None
    try:
        digests = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    covered, rest = divmod(len(digests), heads * _WORD)
    return None if rest or covered > blocks else GroupDigest(blocks, tail, covered, digests)


def _number(value: Any, most: int) -> int | None:
    """Return a whole number from 0 to *most*, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


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
