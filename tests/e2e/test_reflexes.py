"""Reflexes of a real decode server: it computes what costs more to wait for, and says so."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1 import events_pb2 as e
from penstock.rules.measured_times import MIN_SAMPLES

from demo.common.client import complete
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.bench import TOKENS
from tests.support.kv.peers import stopped

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench
    from tests.support.kv.peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

FAIL = {"action": "fail"}
# Handshakes that NIXL itself may give up first, on a machine that stands still for five seconds.
_ATTEMPTS = 5


def _measure(kv: Bench) -> None:
    """Have decode compute as many prompts as it takes to know what that costs."""
    for _ in range(MIN_SAMPLES):
        prompt = f"{uuid.uuid4().hex} {'a sentence of some words, as long as others. ' * 2}"
        assert complete(kv.stack.decode.url, prompt, max_tokens=TOKENS).status == 200


def test_a_start_that_does_not_come(kv: Bench, spare: Spare) -> None:
    """The peer stands still: the request is computed here and answered, although a failed load would fail it."""
    server = spare.server()
    kv.enforce(kvLoadFailure=FAIL, reflexes={"startWait": {"action": "enforce", "minWait": "200ms"}})
    _measure(kv)
    with stopped(server):
        for _ in range(_ATTEMPTS):
            request = kv.misled(port=server.side_channel_port)
            answer = kv.decode(request)
            if kv.failure(request).mode == c.FAILURE_MODE_TIMEOUT:
                break
            assert kv.failure(request).mode == c.FAILURE_MODE_SETUP

    assert answer.completion == request.text
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_REFLEX)
    assert "reflexes.startWait" in outcome.reason
    assert kv.span(request, "penstock.request").attributes["penstock.decided_by"] == "reflex"
    assert "reflexes.startWait" in kv.ctl("explain", request.name)


def test_a_peer_that_is_slow(kv: Bench) -> None:
    """After some slow loads its blocks are not loaded; in observe they are, and it is said what would have been done."""
    kv.enforce(kvLoadFailure=FAIL, reflexes={"slowPeer": {"action": "enforce"}})
    _measure(kv)
    with kv.drill("slow", "--delay", "2s"):
        for _ in range(MIN_SAMPLES):
            request = kv.prefilled()
            assert kv.decode(request).completion == request.text
            assert not kv.events("load_outcome", request.name)
        left_out = kv.prefilled()
        assert kv.decode(left_out).completion == left_out.text
        kv.enforce(kvLoadFailure=FAIL, reflexes={"slowPeer": {"action": "observe"}})
        loaded = kv.prefilled()
        assert kv.decode(loaded).completion == loaded.text

    outcome = kv.outcome(left_out)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_REFLEX)
    assert outcome.reason.startswith("the peer is slow; reflexes.slowPeer: its loads take ")
    assert outcome.peer.address == left_out.peer
    assert "reflexes.slowPeer" in kv.ctl("explain", left_out.name)
    # Its peer is well, and is told that nobody will read its blocks.
    lease = kv.event("lease_closed", left_out.remote_request_id).lease_closed
    assert lease.ending == e.LEASE_ENDING_READ
    kv.closed(loaded)
    assert not kv.events("load_outcome", loaded.name)
    (waited,) = [
        event.deferral_end
        for event in kv.events("deferral_end", loaded.name)
        if event.deferral_end.reason == c.DEFERRAL_REASON_REMOTE_KV
    ]
    assert waited.observed_reason.startswith("reflexes.slowPeer: its loads take ")
