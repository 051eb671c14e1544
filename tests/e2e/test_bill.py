"""The bill of a recorded incident is what real engines did about it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.bench import POLICY
from tests.support.kv.peers import garbled, impostor

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def test_recomputed_loads_are_billed_to_their_peer_and_policy(kv: Bench) -> None:
    """Tokens as the outcomes tell them, the gate as the requests measured it, and a price from whole prefills."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    with impostor(kv.stack.prefill, garbled) as sick:
        healthy = kv.prefilled()
        misled = [kv.misled(size, port=sick.port) for size in (1, 4)]
        began = time.time()
        # The agent counts the time back from when it gets its turn.
        time.sleep(2)
        for request in (healthy, *misled):
            assert kv.decode(request).completion == request.text
        ends = [kv.closed(request).request_closed for request in misled]
        tokens = sum(kv.outcome(request).tokens_recomputed for request in misled)
        kv.closed(healthy)

    asked = admin.GetBillRequest(selector=admin.EngineSelector(labels="role=decode"))
    asked.since.FromNanoseconds(int((time.time() - began) * 1e9))
    bill = kv.admin.GetBill(asked, timeout=60)
    (line,) = [each for each in bill.lines if each.peer == sick.peer]
    assert list(line.policies) == [POLICY]
    assert (line.costs.recomputed, line.costs.failed, line.costs.tokens_recomputed) == (2, 0, tokens)
    assert line.costs.recompute.ToNanoseconds() == sum(each.gates.recompute_nano for each in ends)
    assert line.costs.recompute.ToNanoseconds() > 0
    # The healthy request waited for its KV and got it.
    assert sum(each.costs.waits for each in bill.lines if each.peer == healthy.peer) == 1
    # Nothing in this time computed its prompt without a loss: no price is guessed.
    assert (line.costs.tokens_unpriced, bill.truncated) == (tokens, False)
