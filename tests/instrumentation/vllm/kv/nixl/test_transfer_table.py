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
    ("running", "duration", "post", "unseen"),
    [
        # Never looked at before: it came after the posting.
        (0, 1000, 10, 990),
        (0, 10, 10, 0),
        # The look before found it running.
        (1600, 1000, 10, 400),
        # NIXL's clock and the host's differ by a little; or the host's was set.
        (2001, 1000, 10, 0),
        (900, 1000, 10, 990),
    ],
)
def test_by_how_much_an_end_may_have_been_earlier(
    running: int, duration: int, post: int, unseen: int
) -> None:
    """The look before and the posting found the transfer still running."""
    transfers, posted = TransferTable(), PostedTransfer(PlannedTransfer("a", Peer("p:1")), 1, 1000)
    transfers.add(4711, posted)
    transfers.saw_running(4711, running)
    transfers.saw_running(4711, 0)
    transfers.saw_running(4712, 5)
    assert posted.end_uncertainty_ns(duration, post) == unseen


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
