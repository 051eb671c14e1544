"""What a NIXL worker tells in a snapshot, and what it tells if vLLM's table of loads is another."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.vllm.kv.nixl.snapshot import NixlSnapshot
from penstock.instrumentation.vllm.naming import Peer
from penstock.proto.v1.snapshot_pb2 import Snapshot


class _Worker:
    """A worker without the table of loads."""

    def __init__(self) -> None:
        self._remote_agents: dict[str, dict[int, str]] = {"e": {}}
        self._engine_last_active = {"e": time.perf_counter()}
        self._invalid_remote_engines: set[str] = set()


def test_loads_that_cannot_be_read_cost_no_peers() -> None:
    """The error is the guard's, after everything else is in the snapshot."""
    peer = Peer(address="p:1", engine_id="e")
    handshake = SimpleNamespace(peer=peer, queued_ns=time.time_ns(), clock_offset_ns=None)
    observer: Any = SimpleNamespace(
        transfers=SimpleNamespace(in_flight=list),
        counts=SimpleNamespace(totals=()),
        handshakes=SimpleNamespace(recent=lambda _: [handshake]),
        quarantine=None,
    )
    worker = _Worker()
    snapshot = Snapshot()
    with pytest.raises(AttributeError, match="_recving_metadata"):
        NixlSnapshot(observer, worker).fill(snapshot)
    assert [row.peer.address for row in snapshot.peers] == ["p:1"]
