"""Two real prefill engines whose manifest fixes one connector engine id: told before traffic, and the answers that came of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.steps import until
from tests.support.engine.bench import wait_known
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import Spare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.stack import Stack
    from tests.support.kv.bench import Bench

_TRANSFER = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_producer",
    "kv_buffer_device": "cpu",
    "engine_id": "fixed-by-the-manifest",
}
_FIXED = ("--kv-transfer-config", json.dumps(_TRANSFER))
SAME_ID = replace(CPU_DEFAULTS, name="same-id", prefill=replace(CPU_DEFAULTS, name="fixed-id", args=_FIXED))

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.parametrize("stack", [SAME_ID], indirect=True, ids=["same-id"]),
]


@pytest.fixture
def twin(stack: Stack) -> Iterator[Spare]:
    """Give a second prefill server with the same connector engine id, known to the agent."""
    twin = Spare(stack, "twin", *_FIXED)
    twin.server()
    wait_known(stack.agent, "twin")
    yield twin
    twin.stop()


def _cause(kv: Bench) -> admin.DiagnosedCause | None:
    causes = kv.admin.Diagnose(admin.DiagnoseRequest(), timeout=60).causes
    return next((each for each in causes if each.kind == "engine_id_shared"), None)


def _assigned(kv: Bench) -> dict[str, set[str]]:
    """Return the engines that pairs assign each address to."""
    found: dict[str, set[str]] = {}
    for pair in kv.admin.ListPairs(admin.ListPairsRequest(), timeout=60).pairs:
        engines = found.setdefault(pair.peer.address, set())
        if pair.HasField("peer_key"):
            engines.add(pair.peer_key.server)
    return found


def test_one_is_read_in_the_place_of_the_other(kv: Bench, twin: Spare) -> None:
    """Both are named before a block has moved; then the answer that asked the second is a suspect, and nobody else's."""
    until(lambda: _cause(kv) is not None, "Nothing is said of the shared id")
    told = _cause(kv)
    assert told is not None
    assert {key.server for key in told.engines} == {"prefill", "twin"}
    assert (told.confidence, told.requests) == (admin.DIAGNOSIS_CONFIDENCE_CERTAIN, 0)

    first = kv.prefilled()
    assert kv.decode(first).completion == first.text
    second = kv.prefilled(server=twin.server())
    assert second.engine_id == first.engine_id == _TRANSFER["engine_id"]
    assert second.peer != first.peer
    kv.decode(second)
    kv.closed(second)

    def suspects() -> list[dict[str, object]]:
        return list(json.loads(kv.agent.ctl("get", "suspects", "-o", "json").output)["suspects"])

    until(suspects, "agentctl get suspects names no answer")
    (suspect,) = suspects()
    assert second.name in str(suspect["requestId"])
    assert suspect["reasons"] == ["other_engine"]
    assert first.peer in str(suspect["evidence"])

    until(lambda: getattr(_cause(kv), "requests", 0) == 1, "The cause does not count the answer")
    assigned = _assigned(kv)
    assert first.peer in assigned
    assert all(len(engines) <= 1 for engines in assigned.values()), assigned
    assert "twin" not in assigned[first.peer]
