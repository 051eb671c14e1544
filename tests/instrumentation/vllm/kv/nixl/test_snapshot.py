"""A NIXL worker's snapshot where vLLM's tables of peers are others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.core import guard
from penstock.instrumentation.core.guard import DropCounter
from penstock.instrumentation.vllm.kv.nixl.snapshot import NixlSnapshot
from penstock.instrumentation.vllm.naming import Peer
from penstock.proto.v1.snapshot_pb2 import Snapshot


class _Worker:
    """A worker without tables of peers, whose transfer facts cannot be read either."""

    transfer_topo = object()


def test_peers_that_cannot_be_read_cost_no_pinned_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the guard's, after everything else is in the snapshot; transfer facts have a guard of their own, and one attempt."""
    monkeypatch.setattr(guard, "raising", False)
    monkeypatch.setattr(guard, "counts", DropCounter())
    pinned = {"peer": Peer(address="p:1", engine_id="e").fields(), "since_time_unix_nano": 1, "blocks": 3}
    observer: Any = SimpleNamespace(
        transfers=SimpleNamespace(in_flight=list),
        handshakes=SimpleNamespace(waiting=list),
        counts=SimpleNamespace(totals=[("num_failed_transfers", 2, 1)]),
        pinned_blocks=lambda: [pinned],
        connector="NixlConnector",
        rank=0,
    )
    worker = _Worker()
    filled = NixlSnapshot(observer, worker)
    for _ in range(2):
        snapshot = Snapshot()
        with pytest.raises(AttributeError, match="_remote_agents"):
            filled.fill(snapshot)
    assert guard.counts.snapshot() == {("nixl", "AttributeError"): 1}
    assert [(row.peer.address, row.blocks) for row in snapshot.held] == [("p:1", 3)]
    assert [(row.upstream, row.seen) for row in snapshot.upstream_counts] == [(2, 1)]
