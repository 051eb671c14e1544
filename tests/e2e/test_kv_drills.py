"""Rehearsals: each mode through vLLM's own failure path, marked everywhere, over when their time is."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.bench import DECODE

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def _good(kv: Bench) -> Prefilled:
    """Send a request that is loaded as if nothing had ever happened."""
    request = kv.prefilled()
    assert kv.decode(request).completion == request.text
    assert kv.closed(request).request_closed.external_cached_tokens > 0
    assert not kv.events("transfer_failure", request.name)
    return request


def _loads(kv: Bench) -> bool:
    """Send a request; tell whether it was loaded without trouble."""
    request = kv.prefilled()
    assert kv.decode(request).completion == request.text
    kv.closed(request)
    return not kv.events("load_outcome", request.name)


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        pytest.param("handshake", c.FAILURE_MODE_HANDSHAKE, marks=pytest.mark.long),
        pytest.param("setup", c.FAILURE_MODE_SETUP, marks=pytest.mark.long),
        ("transfer", c.FAILURE_MODE_TRANSFER),
        pytest.param("exception", c.FAILURE_MODE_EXCEPTION, marks=pytest.mark.long),
    ],
)
def test_a_mode_is_rehearsed(kv: Bench, mode: str, number: int) -> None:
    """One failure and one outcome, both marked; the tokens are right, and so are those of a follower."""
    _good(kv)
    kv.enforce(kvLoadFailure={"action": "recompute"})
    # Decode shakes hands only with engines that it has not met.
    request = (
        kv.misled(6, port=kv.stack.prefill.side_channel_port) if mode == "handshake" else kv.prefilled(6)
    )
    with kv.drill(mode):
        answer = kv.decode(request)
        assert mode in kv.ctl("drill", "list")

    assert answer.completion == request.text
    failure, outcome = kv.failure(request), kv.outcome(request)
    assert (failure.mode, failure.peer.address) == (number, request.peer)
    assert (outcome.mode, outcome.outcome) == (number, c.OUTCOME_RECOMPUTED)
    assert outcome.tokens_recomputed == request.tokens
    for kind in ("transfer_failure", "load_outcome"):
        assert [event.rehearsal for event in kv.events(kind, request.name)] == [True]
    labels = {"mode": mode, "peer": request.peer, "rehearsal": "true"}
    until(lambda: kv.value("penstock_transfer_failures_total", **labels) >= 1, f"No failure with {labels}")
    until(lambda: kv.value("penstock_load_outcomes_total", **labels) >= 1, f"No outcome with {labels}")
    assert kv.span(request, "penstock.request").attributes["penstock.rehearsal"] == "true"
    follower = kv.prefilled(prompt=f"{request.prompt} and so on {uuid.uuid4().hex}")
    assert kv.decode(follower).completion == follower.text
    assert not kv.events("transfer_failure", follower.name)


def test_a_lost_notification_is_rehearsed(kv: Bench) -> None:
    """The blocks arrive, prefill does not hear of it: the request is good and the failure has no outcome."""
    _good(kv)
    request = kv.prefilled()
    with kv.drill("notification"):
        answer = kv.decode(request)

    assert answer.completion == request.text
    failure = kv.failure(request)
    assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_NOTIFICATION, request.peer)
    assert [event.rehearsal for event in kv.events("transfer_failure", request.name)] == [True]
    assert not kv.events("load_outcome", request.name)


def test_a_slow_transfer_is_rehearsed(kv: Bench) -> None:
    """It takes longer, which a deadline sees: the request fails, marked, and its blocks stay until the transfer has ended."""
    _good(kv)
    kv.enforce(kvLoadFailure={"action": "recompute"}, deferral={"maxTransferWait": "500ms"})
    request = kv.prefilled()
    with kv.drill("slow", "--delay", "5s"):
        assert kv.decode(request).status == 503

    failure = kv.failure(request)
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    assert kv.outcome(request).decided_by == c.DECIDED_BY_DEADLINE
    kv.event("blocks_pinned", request.name, released=True)
    for kind, count in (("transfer_failure", 1), ("load_outcome", 1), ("blocks_pinned", 2)):
        assert [event.rehearsal for event in kv.events(kind, request.name)] == [True] * count
    kv.forget()  # on a busy machine a good transfer may take as long
    _good(kv)


@pytest.mark.long
def test_a_drill_ends_by_itself(kv: Bench) -> None:
    """After its time nothing is left of it, without anybody stopping it."""
    _good(kv)
    kv.enforce(kvLoadFailure={"action": "recompute"})
    hit = kv.prefilled()
    kv.ctl("inject-fault", "--selector", DECODE, "--mode", "transfer", "--rate", "1.0", "--ttl", "15s")
    assert kv.decode(hit).completion == hit.text
    assert kv.failure(hit).mode == c.FAILURE_MODE_TRANSFER

    until(lambda: "no drill is running" in kv.ctl("drill", "list"), "The drill does not end")

    # The engine's own time began later, by what the order was under way.
    until(lambda: _loads(kv), "Transfers fail as if the drill had not ended")


def test_an_engine_that_does_not_allow_faults_gets_none(kv: Bench, spare: Spare) -> None:
    """The spare server was started without PENSTOCK_ALLOW_FAULTS; the refusal says what to do."""
    spare.server()

    def refused() -> bool:
        # It serves before the agent knows it; then no engine matches.
        said = kv.agent.ctl("inject-fault", "--selector", "tier=spare", "--mode", "transfer", "--ttl", "10s")
        assert said.code != 0
        return "PENSTOCK_ALLOW_FAULTS" in said.output

    until(refused, "The refusal does not say PENSTOCK_ALLOW_FAULTS")
