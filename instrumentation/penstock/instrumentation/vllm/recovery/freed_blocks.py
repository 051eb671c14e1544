"""Blocks freed by preempted or finished requests whose step is unconfirmed. Used to extend a taint to the prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.recovery.rewind import NO_BLOCK, BlockHolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet


class FreedBlocks:
    """The blocks of a request that was preempted or ended."""

    def __init__(self, request_id: str, groups: Sequence[Sequence[Any]]) -> None:
        """Keep vLLM's blocks, *groups*, with the hashes that they have now."""
        self.request_id = request_id
        self._groups = [[(block, block.block_hash) for block in group] for group in groups]

    def holder(self, name: str) -> BlockHolder:
        """Return, under *name*, the blocks that still have the content that they had."""
        return BlockHolder(
            name,
            tuple(
                [
                    block.block_id
                    if not block.is_null and content is not None and block.block_hash == content
                    else NO_BLOCK
                    for block, content in group
                ]
                for group in self._groups
            ),
        )

    def first_token_in(self, invalid: AbstractSet[int], block_sizes: Sequence[int]) -> int | None:
        """Return the first token of the request that lay in an *invalid* block, whatever is in it now; None if none did."""
        return min(
            (
                index * size
                for group, size in zip(self._groups, block_sizes, strict=True)
                for index, (block, _) in enumerate(group)
                if not block.is_null and block.block_id in invalid
            ),
            default=None,
        )


def freed_by_name(freed: Iterable[FreedBlocks]) -> dict[str, FreedBlocks]:
    """Return *freed* under names that no request has: no request id holds a NUL."""
    return {f"{each.request_id}\0{number}": each for number, each in enumerate(freed)}
