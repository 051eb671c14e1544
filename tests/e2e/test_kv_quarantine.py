"""A sick peer is left alone for a while; the others are not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1 import events_pb2 as e

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import garbled, impostor, with_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Impostor

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

RECOMPUTE = {"action": "recompute"}


@pytest.fixture
def sick(kv: Bench) -> Iterator[Impostor]:
    """Give a peer with which every handshake fails at once; decode knows the healthy one, too."""
    _loads(kv, kv.prefilled())
    with impostor(kv.stack.prefill, garbled) as running:
        yield running


def _loads(kv: Bench, request: Prefilled) -> None:
    """See that a request is loaded from its peer, and not recomputed."""
    assert kv.decode(request).completion == request.text
    assert kv.closed(request).request_closed.external_cached_tokens > 0
    assert not kv.events("load_outcome", request.name)


def _cut_off(kv: Bench, request: Prefilled) -> None:
    """See that a request is recomputed without an attempt to load it."""
    assert kv.decode(request).completion == request.text
    decided = kv.outcome(request)
    assert (decided.outcome, decided.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_QUARANTINE)
    assert decided.peer.address == request.peer
    assert not kv.events("transfer_failure", request.name)
    assert not kv.events("deferral_start", request.name)


def _changes(kv: Bench, peer: str) -> list[tuple[int, str]]:
    """Return the states that a peer came to, and why; news of one that stays (another engine id) left out."""
    return [
        (event.quarantine_changed.state, event.quarantine_changed.reason)
        for event in kv.events("quarantine_changed")
        if event.quarantine_changed.peer.address == peer
        and event.quarantine_changed.state != event.quarantine_changed.previous
    ]


def test_after_some_failures_no_request_waits_for_the_peer(kv: Bench, sick: Impostor) -> None:
    """The third request does not try, the healthy peer is untouched, and agentctl lets the sick one in again."""
    kv.enforce(kvLoadFailure=RECOMPUTE, peerQuarantine={"failures": 2, "window": "60s", "duration": "10m"})
    for _ in range(2):
        request = kv.misled(port=sick.port)
        assert kv.decode(request).completion == request.text
        assert kv.failure(request).mode == c.FAILURE_MODE_HANDSHAKE
    asked = sick.asked

    third = kv.misled(port=sick.port)
    _cut_off(kv, third)
    _loads(kv, kv.prefilled())

    assert sick.asked == asked
    assert kv.span(third, "penstock.request").attributes["penstock.decided_by"] == "quarantine"
    assert _changes(kv, sick.peer) == [(e.QUARANTINE_STATE_OPEN, "failures")]
    kv.wait_value(1, "penstock_quarantines_total", peer=sick.peer, reason="failures")
    kv.wait_value(1, "penstock_peer_quarantine_state", peer=sick.peer, state="open")
    assert sick.peer in kv.ctl("quarantine", "list")
    assert kv.stack.prefill.peer not in kv.ctl("quarantine", "list")
    kv.ctl("quarantine", "lift", sick.peer, "--ttl", "1m")
    last = kv.misled(port=sick.port)
    assert kv.decode(last).completion == last.text
    assert sick.asked > asked
    assert kv.failure(last).error_type == c.ERROR_TYPE_DECODE
    assert _changes(kv, sick.peer)[-1] == (e.QUARANTINE_STATE_CLOSED, "operator")


@pytest.mark.long
def test_under_auto_only_large_ones_fail(kv: Bench, sick: Impostor) -> None:
    """A failing peer causes no retry storm: small requests recompute, large ones fail with a retryable error."""
    small, large = kv.misled(1, port=sick.port), kv.misled(8, port=sick.port)
    kv.enforce(
        kvLoadFailure={"action": "auto", "maxRecomputeTokens": small.tokens},
        peerQuarantine={"failures": 1, "window": "60s", "duration": "10m"},
    )
    kv.decode(kv.misled(1, port=sick.port))

    _cut_off(kv, small)
    refused = kv.decode(large)

    assert refused.status == 503
    assert "quarantined" in refused.body["error"]["message"]
    assert sick.peer in refused.body["error"]["message"]
    decided = kv.outcome(large)
    assert (decided.outcome, decided.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_QUARANTINE)


def test_an_incompatible_peer_stays_out_until_it_is_another(kv: Bench) -> None:
    """One failure is enough and no time heals it; a new engine id at the same address does."""
    _loads(kv, kv.prefilled())
    kv.enforce(kvLoadFailure=RECOMPUTE, peerQuarantine={"failures": 5, "window": "60s", "duration": "1s"})
    with impostor(kv.stack.prefill, with_hash("f" * 64)) as other:
        first = kv.misled(port=other.port)
        assert kv.decode(first).completion == first.text
        opened = kv.event("quarantine_changed", peer=other.peer).quarantine_changed
        assert (opened.state, opened.reason) == (e.QUARANTINE_STATE_OPEN, "incompatible")
        assert opened.until_time_unix_nano == 0
        asked = other.asked
        _cut_off(kv, kv.misled(port=other.port, engine_id=first.engine_id))
        assert other.asked == asked

        anew = kv.misled(port=other.port)
        assert kv.decode(anew).completion == anew.text

        assert other.asked > asked
        assert kv.failure(anew).error_type == c.ERROR_TYPE_INCOMPATIBLE
        assert (e.QUARANTINE_STATE_CLOSED, "engine_id_changed") in _changes(kv, other.peer)


def test_one_probe_decides_after_the_time(kv: Bench) -> None:
    """A rehearsed failure cuts the prefill server off; probes fail while it lasts, and one success lets it in."""
    peer = kv.stack.prefill.peer
    before = len(_changes(kv, peer))
    kv.enforce(
        kvLoadFailure=RECOMPUTE,
        peerQuarantine={"failures": 1, "window": "60s", "duration": "1s", "maxPeersPercent": 100},
    )
    with kv.drill("transfer", "--peer", peer):
        _right_until(kv, lambda: (e.QUARANTINE_STATE_OPEN, "probe_failed") in _changes(kv, peer)[before:])
    _right_until(kv, lambda: (e.QUARANTINE_STATE_CLOSED, "probe_ok") in _changes(kv, peer)[before:])

    changes = _changes(kv, peer)[before:]
    assert changes[0] == (e.QUARANTINE_STATE_OPEN, "failures")
    assert changes[-1] == (e.QUARANTINE_STATE_CLOSED, "probe_ok")
    states = [state for state, _ in changes]
    assert all(
        here == e.QUARANTINE_STATE_HALF_OPEN
        for here, after in itertools.pairwise(states)
        if after != e.QUARANTINE_STATE_HALF_OPEN
    )
    rehearsed = {"peer": peer, "rehearsal": "true"}
    until(lambda: kv.value("penstock_quarantines_total", **rehearsed) >= 1, "No rehearsal is counted")
    _loads(kv, kv.prefilled())


def _right_until(kv: Bench, done: Callable[[], bool]) -> None:
    """Send requests, each of which must have the right tokens, until *done*."""

    def send() -> bool:
        request = kv.prefilled(1)
        assert kv.decode(request).completion == request.text
        return done()

    until(send, "The quarantine does not change", seconds=120)


def test_an_operator_cuts_a_healthy_peer_off(kv: Bench) -> None:
    """An order needs neither failures nor a policy; vLLM's own `fail` then holds unless a policy says more."""
    peer = kv.stack.prefill.peer
    _loads(kv, kv.prefilled())
    kv.enforce(kvLoadFailure=RECOMPUTE)
    kv.ctl("quarantine", "add", peer, "--selector", "role=decode", "--ttl", "5m", "--reason", "INC-7")
    try:
        _cut_off(kv, kv.prefilled())
    finally:
        kv.ctl("quarantine", "lift", peer, "--selector", "role=decode", "--ttl", "1s")
    _loads(kv, kv.prefilled())
