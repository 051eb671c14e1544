"""Peers that stop or die while blocks are being moved."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.peers import stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from demo.common.client import Answer
    from demo.servers import Server
    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


@pytest.fixture
def met(kv: Bench, spare: Spare) -> Server:
    """Give the spare server, with which decode has shaken hands."""
    server = spare.server()
    request = kv.prefilled(server=server)
    assert kv.decode(request).completion == request.text
    return server


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Give a thread that sends requests."""
    with ThreadPoolExecutor(2) as senders:
        yield senders


def _hangs(kv: Bench, senders: ThreadPoolExecutor, request: Prefilled) -> Future[Answer]:
    """Send *request* to decode and wait until its transfer is in flight; an earlier one may be shown a while longer."""
    begun = time.time()
    answer = senders.submit(kv.decode, request)
    until(
        lambda: kv.value("penstock_oldest_transfer_start_timestamp_seconds", peer=request.peer) >= begun,
        f"No transfer from {request.peer} is in flight",
    )
    return answer


def test_a_transfer_from_a_stopped_peer_is_given_up(
    kv: Bench, met: Server, background: ThreadPoolExecutor
) -> None:
    """A deadline that is set while the request waits ends it; its blocks stay for as long as the peer may write to them."""
    request, other = kv.prefilled(6, server=met), kv.prefilled(6)
    before = kv.value("penstock_held_blocks", holder="pinned")
    with stopped(met):
        answer = _hangs(kv, background, request)
        until(
            lambda: kv.value("penstock_held_blocks", holder="load", peer=request.peer) > 0,
            "No blocks are held by the load",
        )
        loading = kv.value("penstock_held_blocks", holder="load", peer=request.peer)
        # Nothing of this held when the request was parked.
        kv.enforce(
            kvLoadFailure={"action": "recompute"},
            deferral={"maxTransferWait": "3s", "onTimeout": "recompute"},
        )
        failed = answer.result()
        pinned = kv.event("blocks_pinned", request.name).blocks_pinned
        kv.wait_value(pinned.blocks, "penstock_held_blocks", holder="pinned", peer=request.peer)
        # The scheduler and the worker report one row: the same holder, peer and blocks.
        kv.wait_value(0, "penstock_held_blocks", holder="load", peer=request.peer)
        assert loading == pinned.blocks
        assert kv.value("penstock_held_blocks", holder="pinned") == before + pinned.blocks
        # Others are served meanwhile, and their blocks are others.
        assert kv.decode(other).completion == other.text

    assert failed.status == 503
    assert "KV load failure (mode timeout" in failed.body["error"]["message"]
    failure, outcome = kv.failure(request), kv.outcome(request)
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    assert failure.peer.address == request.peer
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)
    assert outcome.mode == c.FAILURE_MODE_TIMEOUT
    (waited,) = [
        event.deferral_end
        for event in kv.events("deferral_end", request.name)
        if event.deferral_end.reason == c.DEFERRAL_REASON_REMOTE_KV
    ]
    assert waited.ending == c.DEFERRAL_ENDING_TIMEOUT
    assert (pinned.released, pinned.peer.address) == (False, request.peer)
    assert pinned.blocks == failure.blocks
    kv.event("blocks_pinned", request.name, released=True)
    kv.wait_value(0, "penstock_transfers_in_flight", peer=request.peer)
    for holder in ("load", "pinned", "aborted"):
        kv.wait_value(0, "penstock_held_blocks", holder=holder, peer=request.peer)
    again = kv.prefilled(prompt=request.prompt)
    assert kv.decode(again).completion == request.text


def test_a_handshake_with_a_stopped_peer_is_not_waited_for(kv: Bench, met: Server) -> None:
    """A wait for a start has its own deadline (maxStartWait); the handshake goes on without the request."""
    kv.enforce(kvLoadFailure={"action": "recompute"}, deferral={"maxStartWait": "500ms", "onTimeout": "fail"})
    with stopped(met):
        for _attempt in range(5):
            request = kv.misled(port=met.side_channel_port)
            failed = kv.decode(request)
            if kv.failure(request).mode == c.FAILURE_MODE_TIMEOUT:
                break
            # NIXL gives the handshake up after 5 s; on a machine that stands still for that long, it comes first.
            assert kv.failure(request).mode == c.FAILURE_MODE_SETUP

    assert failed.status == 503
    assert kv.failure(request).mode == c.FAILURE_MODE_TIMEOUT
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)


def test_a_peer_killed_in_mid_transfer(
    kv: Bench, met: Server, spare: Spare, background: ThreadPoolExecutor
) -> None:
    """The transfer ends with the connection; one more request, prefilled before, finds no listener; both are right."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request, late = kv.prefilled(6, server=met), kv.prefilled(3, server=met)
    with stopped(met):
        answer = _hangs(kv, background, request)
        spare.kill()
        assert answer.result().completion == request.text
    assert kv.decode(late).completion == late.text

    failure = kv.failure(request)
    # NIXL raises while it is polled; a status that says so would be a failed transfer.
    assert failure.mode in {c.FAILURE_MODE_EXCEPTION, c.FAILURE_MODE_TRANSFER}
    assert failure.error_type == c.ERROR_TYPE_REMOTE_RESET
    assert failure.peer.address == request.peer
    assert failure.blocks > 0
    assert kv.outcome(request).outcome == c.OUTCOME_RECOMPUTED
    refused = kv.failure(late)
    assert (refused.mode, refused.error_type) == (c.FAILURE_MODE_SETUP, c.ERROR_TYPE_REMOTE_RESET)
    assert refused.peer.address == late.peer
    assert kv.outcome(late).outcome == c.OUTCOME_RECOMPUTED
    assert kv.outcome(late).mode == refused.mode
    kv.wait_value(0, "penstock_transfers_in_flight", peer=request.peer)
