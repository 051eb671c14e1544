"""A real prefill and a real decode engine as a pair: compatible, the same weights, bytes/s; and slow under a drill."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def _pair(kv: Bench, address: str) -> admin.Pair | None:
    """Return decode's pair with the engine behind *address*, as soon as it has moved something and told all facts."""
    for pair in kv.admin.ListPairs(admin.ListPairsRequest(), timeout=60).pairs:
        if (
            pair.peer.address == address
            and pair.connected
            and pair.speed.count
            and pair.weights != admin.PAIR_WEIGHTS_UNKNOWN
        ):
            return pair
    return None


def _loaded(kv: Bench) -> str:
    """Load one request's blocks; return the peer."""
    request = kv.prefilled()
    assert kv.decode(request).completion == request.text
    return request.peer


def test_the_stack_is_a_pair(kv: Bench) -> None:
    """Both engines have told what they are, and blocks have moved between them."""
    peer = _loaded(kv)
    until(lambda: _pair(kv, peer) is not None, "No pair with its facts")
    pair = _pair(kv, peer)
    assert pair is not None
    assert pair.compatible == admin.PAIR_COMPATIBILITY_YES
    assert pair.weights == admin.PAIR_WEIGHTS_SAME
    assert pair.HasField("peer_key")
    assert "-token blocks" in pair.geometry
    assert pair.transport.startswith("UCX")
    assert pair.speed.bytes_per_second > 0
    assert kv.value("penstock_transfer_throughput_bytes_per_second", peer=peer) > 0
    shown = kv.ctl("get", "pairs", "-o", "wide")
    assert peer in shown
    assert "UCX" in shown


@pytest.mark.long
def test_a_slowed_peer_is_found(kv: Bench) -> None:
    """Transfers that take seconds are slow against those before."""
    peer = ""
    for _ in range(25):
        peer = _loaded(kv)
    with kv.drill("slow", "--delay", "1s"):

        def slow() -> bool:
            assert _loaded(kv) == peer
            pair = _pair(kv, peer)
            return pair is not None and pair.speed.HasField("usual_ratio") and pair.speed.usual_ratio < 0.25

        until(slow, "The pair is not slow")
        assert re.search(r"\(\d+%\)", kv.ctl("get", "pairs", "-o", "wide"))
