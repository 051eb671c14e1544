"""The transfers in flight and their size in bytes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from penstock.instrumentation.vllm.kv.nixl.transfer_table import (
    PlannedTransfer,
    PostedTransfer,
    TransferTable,
    bytes_of_blocks,
)
from penstock.instrumentation.vllm.naming.peers import Peer


def test_transfers_are_known_by_address() -> None:
    """A handle is known by its address only; a reused address is the new transfer."""
    transfers = TransferTable()
    first = PostedTransfer(PlannedTransfer("a", Peer("p:1")), 1, 5)
    second = PostedTransfer(PlannedTransfer("b", Peer("p:1")), 1, 7)
    transfers.add(4711, first)
    assert transfers.pop(4711) is first
    assert transfers.pop(4711) is None
    transfers.add(4711, first)
    transfers.add(4711, second)
    assert transfers.in_flight() == [(Peer("p:1"), 1, 7)]
    assert transfers.pop(4711) is second


@pytest.mark.parametrize(
    ("lengths", "group_of", "groups", "expected"),
    [
        ([100, 100], [0, 0], [[1, 2, 3]], 600),
        ([100, 10], [0, 1], [[1, 2], [3]], 210),
        ([100, 10], [0, -1], [[1, 2], [3]], 230),
        ([100], [], [[1], [2]], 200),
        ([100, 10], [0, 2], [[1], [2]], None),
        ([], [], [[1]], None),
        ([100], [0], [], 0),
    ],
    ids=str,
)
def test_bytes_of(
    lengths: list[int], group_of: list[int], groups: list[list[int]], expected: int | None
) -> None:
    """Bytes follow from the regions of each group; inconsistent regions give None."""
    worker = SimpleNamespace(block_len_per_layer=lengths, region_group_ids=group_of)
    assert bytes_of_blocks(worker, groups) == expected


def test_bytes_of_a_state_space_model() -> None:
    """Blocks of different kinds have no common size."""
    worker = SimpleNamespace(block_len_per_layer=[100], region_group_ids=[0], _has_mamba=True)
    assert bytes_of_blocks(worker, [[1]]) is None
