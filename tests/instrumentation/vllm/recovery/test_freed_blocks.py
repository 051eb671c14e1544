"""Blocks that a request has lost."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.recovery.freed_blocks import FreedBlocks
from penstock.instrumentation.vllm.recovery.rewind import NO_BLOCK, BlockHolder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeScheduler = Callable[..., Any]


def test_freed_blocks_are_only_what_is_still_there() -> None:
    """Of the blocks that a request has left, those that were reused, never cached or stand for nothing are not its any more."""

    def block(number: int, content: object, *, null: bool = False) -> Any:
        return SimpleNamespace(block_id=number, block_hash=content, is_null=null)

    blocks = [block(1, "a"), block(2, "b"), block(3, None), block(0, "n", null=True)]
    freed = FreedBlocks("r", [blocks])
    blocks[1].block_hash = "reused"
    assert freed.holder("g") == BlockHolder("g", ([1, NO_BLOCK, NO_BLOCK, NO_BLOCK],))
