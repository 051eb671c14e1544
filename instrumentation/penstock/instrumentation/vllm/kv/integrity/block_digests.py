"""Digests of KV blocks: eight bytes for each block and KV head, over all layers of a KV cache group.

The digest of a piece of memory, read as 64-bit words ``x``, is ``sum(w[i] * x[i] + v[i] * (x[i] >> 32))`` modulo 2**64 with fixed
pseudo-random odd ``w`` and ``v``; the pieces of the layers are added with an odd factor each. So one flipped bit always changes
it, and words, blocks, heads or layers in each other's place, zeros and old content do but for one in 2**33 cases or less. It is no
protection against an attacker. It is bound by the memory's bandwidth, and the same expression runs on any device.

Blocks are read through vLLM's own views, whose logical order (block, head, token, content) is the same for all memory layouts. What a load has
brought to one rank is compared with the sender's digests here (:func:`check_load`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from penstock.instrumentation.vllm.messages import GroupBlocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.instrumentation.vllm.messages import GroupDigest, TransferDigest

_WORD: Final = 8
_DIMENSIONS: Final = 4
_CHUNK_WORDS: Final = 1 << 14
"""Words that are gathered at a time: 128 KiB, so that they stay in a core's cache."""

_CHUNK_WORDS_DEVICE: Final = 1 << 20
"""The same on a device: 8 MiB, so that few operations are launched."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One rank's KV cache: the views of the layers of each group in the order of their names, and which heads it holds.

    *problem*: why its blocks cannot be digested; empty if they can.
    """

    groups: tuple[tuple[Any, ...], ...] = ()
    block_size: int = 0
    total_heads: int = 0
    heads: tuple[int, ...] = ()
    problem: str = ""


class BlockDigests:
    """Computes the digests of one rank's blocks. On the worker's thread."""

    def __init__(self, layout: KvLayout) -> None:
        """Digest the blocks of *layout*, which has no problem."""
        self._layout = layout

    def compute(self, group: int, blocks: GroupBlocks) -> torch.Tensor:
        """Return the digests of *blocks* as int64, shape (blocks, heads of this rank), in the host's memory."""
        views = self._layout.groups[group]
        device = views[0].device
        total = torch.zeros(len(blocks.blocks), len(self._layout.heads), dtype=torch.int64, device=device)
        if blocks.blocks:
            ids = torch.tensor(blocks.blocks, dtype=torch.int64, device=device)
            partial = 0 < blocks.tail < self._layout.block_size
            whole = len(ids) - partial
            for number, view in enumerate(views):
                factor = _signed(_mixed(number + 1) | 1)
                total[:whole] += self._digest(view, ids[:whole], self._layout.block_size) * factor
                if partial:
                    total[whole:] += self._digest(view, ids[whole:], blocks.tail) * factor
        return total.cpu()

    def _digest(self, view: torch.Tensor, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the digests of the first *tokens* tokens of blocks in one layer."""
        words_of_token = view.shape[3] * view.element_size() // _WORD
        words = tokens * words_of_token
        low, high = (
            each[:words] for each in _weights(self._layout.block_size * words_of_token, str(view.device))
        )
        most = _CHUNK_WORDS if view.device.type == "cpu" else _CHUNK_WORDS_DEVICE
        step = max(1, most // (words * view.shape[1]))
        found = []
        for chunk in ids.split(step):
            piece = view.index_select(0, chunk)[:, :, :tokens].contiguous()
            read = piece.view(torch.uint8).view(len(chunk), view.shape[1], words * _WORD).view(torch.int64)
            found.append(_weigh(read, low, high))
        return (
            torch.cat(found)
            if found
            else torch.zeros(0, view.shape[1], dtype=torch.int64, device=view.device)
        )


def _weigh(read: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    if read.device.type == "cpu":
        return read @ low + (read >> 32) @ high
    # There is no integer product of matrices on other devices.
    return (read * low + (read >> 32) * high).sum(-1)


@lru_cache(maxsize=64)
def _weights(words: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors of the words of a whole block; those of its first words are the first ones."""
    numbers = [_signed(_mixed(number) | 1) for number in range(2 * words)]
    values = torch.tensor(numbers, dtype=torch.int64, device=device)
    return values[0::2].contiguous(), values[1::2].contiguous()


def _mixed(number: int) -> int:
    """Return the *number*-th value of SplitMix64 (Steele, Lea, Flood, 2014)."""
    value = (number + 1) * _GOLDEN & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def layout_of(
    caches: Mapping[str, Any],
    group_of: Mapping[str, int],
    *,
    block_size: int,
    total_heads: int,
    rank: int,
    ranks: int,
) -> KvLayout:
    """Return the layout of a rank's KV caches.

    Args:
        caches: vLLM's views by layer.
        group_of: the KV cache group of each layer; layers without one share another's cache.
        block_size: tokens of a block.
        total_heads: KV heads of the model; 1 where every rank has all of the content (MLA).
        rank: of the tensor-parallel ranks.
        ranks: how many there are.

    """
    count = max(1, total_heads // ranks)
    first = rank * total_heads // ranks
    groups: list[list[Any]] = [[] for _ in range(max(group_of.values(), default=-1) + 1)]
    for name in sorted(caches, key=_natural):
        if name not in group_of:
            continue
        view = caches[name]
        if not isinstance(view, torch.Tensor) or view.dim() != _DIMENSIONS:
            return KvLayout(problem=f"the KV cache of {name} has no layout by block, head and token")
        if view.shape[1] != count or view.shape[2] != block_size:
            return KvLayout(
                problem=f"the KV cache of {name} has {view.shape[1]} heads and {view.shape[2]} tokens a block, "
                f"not {count} and {block_size}"
            )
        if view.shape[3] * view.element_size() % _WORD:
            return KvLayout(problem=f"a token of {name} is no multiple of {_WORD} bytes")
        groups[group_of[name]].append(view)
    if not groups or not all(groups):
        return KvLayout(problem="a KV cache group has no layer here")
    return KvLayout(tuple(map(tuple, groups)), block_size, total_heads, tuple(range(first, first + count)))


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return what sorts ``layers.2`` before ``layers.10``."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in name.split("."))


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
