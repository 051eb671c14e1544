"""Requests that suffer from another's trouble: a shared handshake, and the one thread that shakes hands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1 import events_pb2 as e

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import garbled, impostor

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

_REACHED_SECONDS = 60.0
# vLLM gives a handshake five seconds, and a busy machine the other request some of them.
_TRIES = 3
GUARDED = {
    "kvLoadFailure": {"action": "recompute"},
    "deferral": {"maxStartWait": "6s"},
    "peerQuarantine": {"failures": 3, "window": "60s", "duration": "10m"},
}


def _unmet(spare: Spare) -> None:
    """See to it that decode has never shaken hands with the spare server: it is another engine each time."""
    spare.kill()


def _one_handshake(kv: Bench, spare: Spare) -> tuple[Prefilled, Prefilled]:
    """Let a request with the wrong port of an engine shake hands with it, and send one with the right port meanwhile."""
    _unmet(spare)
    valid = kv.prefilled(server=spare.server())
    with ThreadPoolExecutor(2) as senders, impostor(kv.stack.prefill, garbled, silent=True) as other:
        wrong = valid.redirected(remote_port=other.port)
        first = senders.submit(kv.decode, wrong)
        assert other.reached.wait(_REACHED_SECONDS)
        second = senders.submit(kv.decode, valid)
        until(
            lambda: kv.events("deferral_start", valid.name) or second.done(),
            "The second request does not wait",
        )
        other.answers.set()
        assert (first.result().completion, second.result().completion) == (wrong.text, valid.text)
    return wrong, valid


def test_a_valid_request_shares_a_failing_handshake(kv: Bench, spare: Spare) -> None:
    """The first names a wrong port of an engine, the second the right one: both fail, one is collateral."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    for _ in range(_TRIES):
        wrong, valid = _one_handshake(kv, spare)
        # One that came after the end of the other's handshake had its own, and was loaded.
        if not kv.closed(valid).request_closed.external_cached_tokens:
            break
    else:
        pytest.fail(f"The second request came too late {_TRIES} times")

    culprit, victim = kv.failure(wrong), kv.failure(valid)
    assert (culprit.mode, culprit.peer.address) == (c.FAILURE_MODE_HANDSHAKE, wrong.peer)
    assert (victim.mode, victim.peer.address) == (c.FAILURE_MODE_COLLATERAL, valid.peer)
    assert wrong.name in victim.caused_by_request_id
    assert victim.caused_by_peer.address == wrong.peer
    assert victim.handshake_id == culprit.handshake_id
    assert kv.outcome(valid).mode == c.FAILURE_MODE_COLLATERAL
    assert kv.outcome(wrong).mode == c.FAILURE_MODE_HANDSHAKE
    assert kv.span(valid, "penstock.request").attributes["penstock.mode"] == "collateral"


def _cut_off(kv: Bench) -> set[str]:
    """Return the peers that have been cut off."""
    changes = [event.quarantine_changed for event in kv.events("quarantine_changed")]
    return {each.peer.address for each in changes if each.state == e.QUARANTINE_STATE_OPEN}


def _loads(kv: Bench, request: Prefilled) -> None:
    """See that a request was loaded from its peer, and not recomputed."""
    assert kv.closed(request).request_closed.external_cached_tokens > 0
    assert not kv.events("load_outcome", request.name)
    assert not kv.events("transfer_failure", request.name)


@pytest.mark.long
def test_dead_peers_in_front_of_a_healthy_one(kv: Bench, spare: Spare) -> None:
    """Loads that wait too long behind dead peers do not count against the healthy one, but against the dead."""
    _unmet(spare)
    kv.enforce(**GUARDED)
    healthy = [kv.prefilled(server=spare.server()) for _ in range(3)]

    with (
        ThreadPoolExecutor(len(healthy) + 3) as senders,
        impostor(kv.stack.prefill, garbled, silent=True) as other,
    ):
        dead = [kv.misled(port=other.port), kv.misled(), kv.misled()]
        gone = {each.peer for each in dead}
        first = senders.submit(kv.decode, dead[0])
        assert other.reached.wait(_REACHED_SECONDS)
        answers = [senders.submit(kv.decode, each) for each in dead[1:]]
        # Handshakes are made in the order of the loads.
        until(
            lambda: all(kv.events("deferral_start", each.name) for each in dead[1:]),
            "The other requests to dead peers do not wait",
        )
        answers += [senders.submit(kv.decode, each) for each in healthy]
        assert first.result().completion == dead[0].text
        for request, answer in zip((*dead[1:], *healthy), answers, strict=True):
            assert answer.result().completion == request.text

    for victim in healthy:
        failure, outcome = kv.failure(victim), kv.outcome(victim)
        assert (failure.mode, failure.peer.address) == (c.FAILURE_MODE_COLLATERAL, victim.peer)
        assert failure.caused_by_peer.address in gone
        assert (outcome.mode, outcome.decided_by) == (c.FAILURE_MODE_COLLATERAL, c.DECIDED_BY_DEADLINE)
        assert f"caused by the handshake with {failure.caused_by_peer.address}" in kv.ctl(
            "explain", victim.name
        )
    culprit = kv.failure(healthy[0]).caused_by_peer.address
    until(lambda: _cut_off(kv) & gone, "No dead peer is cut off")
    until(
        lambda: kv.value("penstock_collateral_delay_seconds_count", caused_by_peer=culprit) >= 1,
        "The delay is not in the metrics",
    )
    kv.event("handshake", peer=healthy[0].peer)
    again = kv.prefilled(server=spare.server())
    assert kv.decode(again).completion == again.text
    _loads(kv, again)
    assert healthy[0].peer not in _cut_off(kv)


@pytest.mark.long
def test_two_healthy_peers(kv: Bench, spare: Spare) -> None:
    """With two prefill servers and no fault the same policy blames no peer."""
    kv.enforce(**GUARDED)
    before = _cut_off(kv)
    requests = [kv.prefilled(server=server) for server in (kv.stack.prefill, spare.server()) * 2]
    with ThreadPoolExecutor(len(requests)) as senders:
        answers = list(senders.map(kv.decode, requests))
    assert [answer.completion for answer in answers] == [request.text for request in requests]
    for request in requests:
        _loads(kv, request)
    assert _cut_off(kv) == before
