"""Compares what a load has brought to one rank with the sender's digests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from penstock.instrumentation.vllm.kv.integrity.block_digests import BlockDigests
from penstock.instrumentation.vllm.messages import GroupBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.instrumentation.vllm.kv.integrity.block_digests import KvLayout
    from penstock.instrumentation.vllm.messages import GroupDigest, TransferDigest


class LoadCheck(NamedTuple):
    """Blocks of a load by what was found; *reason*: why not all were compared, empty if they were."""

    transferred: int
    compared: int
    mismatched: int
    reason: str = ""


def check_load(digest: TransferDigest, layout: KvLayout, local: Sequence[Sequence[int]]) -> LoadCheck:
    """Compare the *local* blocks of each group, which hold the last ones that the sender offered, with its digest."""
    transferred = sum(len(group) for group in local)
    if reason := _unlike(digest, layout, local):
        return LoadCheck(transferred, 0, 0, reason)
    digests = BlockDigests(layout)
    compared = mismatched = 0
    for number, (sent, ids) in enumerate(zip(digest.groups, local, strict=True)):
        count = min(len(ids), sent.covered)
        if count:
            blocks = GroupBlocks(tuple(ids[-count:]), sent.tail)
            mine = digests.compute(number, blocks)
            differs = (mine != _expected(sent, digest.heads, layout.heads, count)).any(dim=1)
            compared += count
            mismatched += int(differs.sum())
    reason = "" if compared == transferred else "the digest does not cover all blocks of so long a request"
    return LoadCheck(transferred, compared, mismatched, reason)


def _expected(sent: GroupDigest, total: int, heads: Sequence[int], count: int) -> torch.Tensor:
    """Return the digests of the last *count* blocks for some heads."""
    table = torch.frombuffer(bytearray(sent.digests), dtype=torch.int64).reshape(sent.covered, total)
    return table[-count:, list(heads)]


def _unlike(digest: TransferDigest, layout: KvLayout, local: Sequence[Sequence[int]]) -> str:
    """Return why the digest cannot be compared with blocks of this layout; empty if it can."""
    if layout.problem:
        return layout.problem
    if digest.block_size != layout.block_size:
        return f"the sender's blocks have {digest.block_size} tokens, those here {layout.block_size}"
    if digest.heads != layout.total_heads or len(digest.groups) != len(layout.groups):
        return "the sender's KV heads or KV cache groups are not those here"
    if any(len(ids) > sent.blocks for sent, ids in zip(digest.groups, local, strict=False)):
        return "more blocks were loaded than the sender digested"
    return "" if len(local) == len(digest.groups) else "the load does not name the blocks of each group"
