"""Where the time to the first token went, on engines: the gates add up to it, and the longest is the one that held it up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from penstock.agent.batch import gate_times
from penstock.proto.v1 import common_pb2 as c

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
_WAITED_NANO = 500_000_000


def _gates(kv: Bench, request: Prefilled) -> dict[str, int]:
    """Return decode's gates of *request* in nanoseconds, the longest first; their sum is its time to first token."""
    closed = kv.closed(request).request_closed
    times = gate_times(closed)
    assert times is not None
    assert times.first_token
    assert times.total_nano == closed.first_token_time_unix_nano - closed.arrival_time_unix_nano
    return dict(times.largest_first())


def _handshakes(kv: Bench, peer: str) -> set[int]:
    """Return the ids of the handshakes with a peer."""
    handshakes = [event.handshake for event in kv.events("handshake")]
    return {each.id for each in handshakes if each.peer.address == peer}


def test_the_gates_of_good_requests(kv: Bench) -> None:
    """One that computes its prompt waits for room only; one that loads it for its peer and its transfer, too."""
    loaded = kv.prefilled()
    local = replace(kv.prefilled(), params={})
    assert kv.decode(loaded).completion == loaded.text
    assert kv.decode(local).completion == local.text
    assert set(_gates(kv, local)) == {"queue", "own_prefill"}
    gates = _gates(kv, loaded)
    loading = {"queue", "peer", "transfer", "own_prefill"}
    assert loading <= set(gates) <= {*loading, "handshake_queue"}
    span = kv.span(loaded, "penstock.request").attributes
    assert float(span["penstock.ttft.gate.transfer"]) == pytest.approx(gates["transfer"] / 1e9, abs=1e-6)
    assert span["penstock.ttft.longest_gate"] == next(iter(gates))
    said = kv.ctl("explain", loaded.name)
    assert "gave its first token after" in said
    assert next(iter(gates)).replace("_", " ") in said
    counts = {
        gate: kv.value("penstock_time_to_first_token_seconds_count", gate=gate)
        for gate in ("queue", "encoder")
    }
    assert counts["queue"] == counts["encoder"] > 0


def _behind_a_dead_peer(kv: Bench, spare: Spare) -> tuple[Prefilled, Prefilled]:
    """Let a request shake hands with a peer that does not answer, and send one to a healthy peer meanwhile."""
    spare.kill()  # decode has never shaken hands with it: it is another engine each time
    healthy = kv.prefilled(server=spare.server())
    with ThreadPoolExecutor(2) as senders, impostor(kv.stack.prefill, garbled, silent=True) as other:
        dead = kv.misled(port=other.port)
        first = senders.submit(kv.decode, dead)
        assert other.reached.wait(_REACHED_SECONDS)
        second = senders.submit(kv.decode, healthy)
        assert (first.result().completion, second.result().completion) == (dead.text, healthy.text)
    return dead, healthy


def test_the_gates_behind_a_dead_peer(kv: Bench, spare: Spare) -> None:
    """The dead peer's request was at its peer and is computed here; the other one waited behind its handshake, and is loaded late.

    The event of the delay says how late and because of whom.
    """
    kv.enforce(kvLoadFailure={"action": "recompute"})
    for _ in range(_TRIES):
        dead, healthy = _behind_a_dead_peer(kv, spare)
        delayed = _gates(kv, healthy)
        # How long it waits depends on when it comes. Short waits have no event, or no time for the comparison below.
        if delayed.get("handshake_queue", 0) >= _WAITED_NANO:
            break
    else:
        pytest.fail(f"The request to the healthy peer came too late {_TRIES} times")

    failed = _gates(kv, dead)
    assert {"handshake_queue", "peer", "transfer"} <= set(delayed)
    assert "recompute" not in delayed
    assert next(iter(failed)) == "peer"
    assert failed["recompute"] > 0
    assert not failed.keys() & {"transfer", "handshake_queue"}
    event = kv.event("transfer_delayed", healthy.name).transfer_delayed
    assert (event.peer.address, event.caused_by_peer.address) == (healthy.peer, dead.peer)
    assert event.delay_nano > 0
    assert delayed["handshake_queue"] == pytest.approx(event.delay_nano, rel=0.1)
    assert not kv.events("transfer_failure", healthy.name)
    assert kv.failure(dead).mode == c.FAILURE_MODE_HANDSHAKE
    # A loaded engine may have tried the dead peer more than once.
    until(
        lambda: event.handshake_id in _handshakes(kv, dead.peer),
        "The handshake that it waited for is no event",
    )
    until(
        lambda: kv.value("penstock_collateral_delay_seconds_count", caused_by_peer=dead.peer) == 1,
        "The delay is not in the metrics",
    )
    longest = next(iter(delayed)).replace("_", " ")
    assert longest in kv.ctl("get", "requests", kv.closed(healthy).request_id, "-o", "wide")
    assert longest in kv.ctl("explain", healthy.name)
