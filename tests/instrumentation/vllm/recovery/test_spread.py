"""The taint's spread from requests that computed on something bad."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.recovery.rewind import BlockHolder, spread

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeScheduler = Callable[..., Any]

tables = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), min_size=1, max_size=5)


@given(tables, st.dictionaries(st.integers(0, 4), st.integers(0, 12), max_size=3), st.sampled_from([1, 2, 4]))
def test_spread_from_requests(blocks: list[list[int]], begins: dict[int, int], size: int) -> None:
    """All behind a request's first bad token is tainted, the block that holds it as a whole, and no unreachable block."""
    holders = [BlockHolder(str(index), (table,)) for index, table in enumerate(blocks)]
    seeds = {str(index): token for index, token in begins.items() if index < len(blocks)}
    taint = spread(holders, set(), [size], seeds)
    (tainted,) = taint.blocks
    for index, table in enumerate(blocks):
        name = str(index)
        start = taint.starts.get(name, len(table) * size)
        assert tainted.isdisjoint(table[: start // size])
        assert tainted.issuperset(table[start // size :])
        if name in seeds:
            assert start <= seeds[name]
        elif name in taint.starts:
            assert start % size == 0
        assert (name in taint.direct) is (name in seeds)
    if not seeds:
        assert not taint.starts
        assert not tainted
