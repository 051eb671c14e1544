"""what-if says of a recorded incident what the same incident then costs under that policy."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import garbled, impostor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Impostor

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

_SMALL, _LARGE = 1, 8
_COMPARED = ("loads", "loaded", "recomputed", "failed", "not_tried", "waits_cut", "tokens_recomputed")


def _incident(kv: Bench, sick: Impostor, sizes: Sequence[int]) -> list[Prefilled]:
    """Load from the healthy peer once, then by turns from the sick one."""
    healthy = kv.prefilled()
    assert kv.decode(healthy).completion == healthy.text
    requests = [healthy, *(kv.misled(size, port=sick.port) for size in sizes)]
    for request in requests[1:]:
        kv.decode(request)
    for request in requests:
        kv.closed(request)
    return requests


def _ask(kv: Bench, since: float, *manifests: dict[str, Any]) -> admin.WhatIfEngine:
    """Replay what decode has recorded since that time under these policies only."""
    request = admin.WhatIfRequest(
        manifests_json=map(json.dumps, manifests),
        only=True,
        selector=admin.EngineSelector(labels="role=decode"),
    )
    request.since.FromNanoseconds(int((time.time() - since) * 1e9))
    (engine,) = kv.admin.WhatIf(request, timeout=60).engines
    found: admin.WhatIfEngine = engine
    return found


def _begin() -> float:
    """Return the time some seconds ago, for :func:`_ask`: the agent counts back from when it gets its turn."""
    now = time.time()
    time.sleep(2)
    return now


def _compared(counts: admin.WhatIfCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in _COMPARED}


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((_SMALL, _LARGE, _SMALL, _LARGE, _SMALL), id="few"),
        pytest.param((_SMALL, _LARGE) * 10, id="many", marks=pytest.mark.long),
    ],
)
def test_a_policy_does_live_what_was_said_of_it(kv: Bench, sizes: Sequence[int]) -> None:
    """Counts and tokens within 5 %; and the policy that was in force gives what was recorded."""
    limit = (kv.prefilled(_SMALL).tokens + kv.prefilled(_LARGE).tokens) // 2
    spec = {
        "selector": {"matchLabels": {"role": "decode"}},
        "kvLoadFailure": {"action": "auto", "maxRecomputeTokens": limit},
        "peerQuarantine": {"failures": 3, "window": "60s", "duration": "10m", "maxPeersPercent": 50},
    }
    metadata = {"name": "what-if"}
    policy = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": metadata,
        "spec": spec,
    }
    with impostor(kv.stack.prefill, garbled) as sick:
        began = _begin()
        _incident(kv, sick, sizes)
        said = _ask(kv, began, policy)
        kv.enforce(kvLoadFailure=spec["kvLoadFailure"], peerQuarantine=spec["peerQuarantine"])
        again = _begin()
        _incident(kv, sick, sizes)
        live = _ask(kv, again, policy)

    assert said.was.failed == len(sizes)
    assert said.would.not_tried == len(sizes) - 3
    expected = {name: pytest.approx(number, rel=0.05) for name, number in _compared(live.was).items()}
    assert _compared(said.would) == expected
    assert _compared(live.would) == _compared(live.was)
    assert [peer.address for peer in said.peers] == [sick.peer]
