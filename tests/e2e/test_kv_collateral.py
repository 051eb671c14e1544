"""Requests that suffer from another's trouble: a shared handshake, and the one thread that shakes hands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.processes import free_port
from demo.steps import until
from tests.support.engines import CPU_DEFAULTS

if TYPE_CHECKING:
    from tests.support.kv_bench import Bench
    from tests.support.kv_peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def _unmet(spare: Spare) -> None:
    """See to it that decode has never shaken hands with the spare server: it is another engine each time."""
    spare.kill()


def test_a_valid_request_shares_a_failing_handshake(kv: Bench, spare: Spare) -> None:
    """The first names a wrong port of an engine, the second the right one: both fail, one is collateral."""
    _unmet(spare)
    kv.enforce(kvLoadFailure={"action": "recompute"})
    valid = kv.prefilled(server=spare.server())
    wrong = valid.redirected(remote_port=free_port())

    with ThreadPoolExecutor(2) as senders:
        first = senders.submit(kv.decode, wrong)
        until(lambda: kv.events("deferral_start", wrong.name), "The first request does not wait")
        second = senders.submit(kv.decode, valid)
        assert (first.result().completion, second.result().completion) == (wrong.text, valid.text)

    culprit, victim = kv.failure(wrong), kv.failure(valid)
    assert (culprit.mode, culprit.peer.address) == (c.FAILURE_MODE_HANDSHAKE, wrong.peer)
    assert (victim.mode, victim.peer.address) == (c.FAILURE_MODE_COLLATERAL, valid.peer)
    assert wrong.name in victim.caused_by_request_id
    assert victim.handshake_id == culprit.handshake_id
    assert kv.outcome(valid).mode == c.FAILURE_MODE_COLLATERAL
    assert kv.outcome(wrong).mode == c.FAILURE_MODE_HANDSHAKE
    assert kv.span(valid, "penstock.request").attributes["penstock.mode"] == "collateral"


def test_a_healthy_new_peer_waits_behind_a_dead_one(kv: Bench, spare: Spare) -> None:
    """Its transfer succeeds late, and the event says how late and because of whom."""
    _unmet(spare)
    kv.enforce(kvLoadFailure={"action": "recompute"})
    healthy = kv.prefilled(server=spare.server())
    dead = kv.misled()

    with ThreadPoolExecutor(2) as senders:
        first = senders.submit(kv.decode, dead)
        until(lambda: kv.events("deferral_start", dead.name), "The first request does not wait")
        second = senders.submit(kv.decode, healthy)
        assert (first.result().completion, second.result().completion) == (dead.text, healthy.text)

    delayed = kv.event("transfer_delayed", healthy.name).transfer_delayed
    assert delayed.peer.address == healthy.peer
    assert delayed.caused_by_peer.address == dead.peer
    assert delayed.delay_nano > 0
    assert kv.failure(dead).mode == c.FAILURE_MODE_HANDSHAKE
    kv.closed(healthy)
    assert not kv.events("transfer_failure", healthy.name)
    assert kv.event("handshake", peer=dead.peer).handshake.id == delayed.handshake_id
    until(
        lambda: kv.value("penstock_collateral_delay_seconds_count", caused_by_peer=dead.peer) == 1,
        "The delay is not in the metrics",
    )
