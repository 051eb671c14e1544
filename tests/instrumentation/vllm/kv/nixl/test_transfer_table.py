"""The transfers of a NIXL worker."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.nixl.nixl_context import PlannedTransfer
from penstock.instrumentation.vllm.kv.nixl.transfer_table import PostedTransfer, TransferTable
from penstock.instrumentation.vllm.naming.peers import Peer


def test_transfers_are_known_by_address() -> None:
    """A handle is not kept alive; one whose address is used again is the new one."""
    transfers = TransferTable()
    first = PostedTransfer(PlannedTransfer("a", Peer("p:1")), 1, 5)
    second = PostedTransfer(PlannedTransfer("b", Peer("p:1")), 1, 7)
    transfers.begin(4711, first)
    assert transfers.end(4711) is first
    assert transfers.end(4711) is None
    transfers.begin(4711, first)
    transfers.begin(4711, second)
    assert transfers.in_flight() == [(Peer("p:1"), 1, 7)]
    assert transfers.end(4711) is second
