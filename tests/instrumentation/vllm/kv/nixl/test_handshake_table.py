"""The handshakes of a NIXL worker."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.nixl.handshake_table import ENGINES, WAITERS, HandshakeTable
from penstock.instrumentation.vllm.naming.peers import Peer


def test_handshakes_are_bounded() -> None:
    """Of many engines the last are remembered; of many waiters the first are named and all are counted."""
    handshakes = HandshakeTable()
    for index in range(ENGINES + 10):
        handshakes.join(Peer(engine_id=str(index)), "r", object(), 1)
    assert len(handshakes.recent(ENGINES + 10)) == ENGINES
    assert handshakes.last("0") is None
    future = object()
    shared = handshakes.join(Peer("p:1", "shared"), "first", future, 1)
    assert shared is not None
    for index in range(WAITERS + 5):
        assert handshakes.join(Peer("p:1", "shared"), str(index), future, 2) is None
    assert (len(shared.waiters), shared.waiters_total) == (WAITERS, WAITERS + 6)
