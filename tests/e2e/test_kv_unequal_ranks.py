"""Prefill and decode servers with unequal numbers of tensor-parallel ranks: right tokens, one outcome, no block let go too early."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from tests.support.engine.pairs import TP1_TO_TP2, TP2_TO_TP1
from tests.support.kv.nixl_faults import faults_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kv.bench import Bench, Prefilled

pytestmark = [pytest.mark.engine, pytest.mark.long]

ONE_READER = pytest.mark.parametrize("stack", [TP2_TO_TP1], indirect=True, ids=["tp2-to-tp1"])
TWO_READERS = pytest.mark.parametrize("stack", [TP1_TO_TP2], indirect=True, ids=["tp1-to-tp2"])
EACH = pytest.mark.parametrize("stack", [TP2_TO_TP1, TP1_TO_TP2], indirect=True, ids=lambda each: each.name)


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Give a thread that sends a request."""
    with ThreadPoolExecutor(1) as sender:
        yield sender


def _modes(kv: Bench, request: Prefilled) -> list[int]:
    """Return the modes of a request's failures, in the order of their events."""
    return [event.transfer_failure.mode for event in kv.events("transfer_failure", request.name)]


def _pinned(kv: Bench, request: Prefilled) -> list[bool]:
    """Return the events about a request's blocks, in order: False for pinned, True for let go."""
    return [event.blocks_pinned.released for event in kv.events("blocks_pinned", request.name)]


def _both_are_seen(kv: Bench, request: Prefilled) -> None:
    """Wait for both transfers of a request's load, good or not; each rank sends its own by itself."""

    def seen() -> int:
        loads = [span for span in kv.spans_of(request.name) if span.name == "kv.load"]
        return sum(int(span.attributes["penstock.transfers"]) for span in loads)

    kv.closed(request)
    until(lambda: seen() == 2, lambda: f"The load of {request.name} is {seen()} transfers")


def _follows_rightly(kv: Bench, request: Prefilled) -> None:
    """See that a request which shares the prefix of one that was recomputed has the right tokens."""
    follower = kv.prefilled(prompt=f"{request.prompt} and so on {uuid.uuid4().hex}")
    assert kv.decode(follower).completion == follower.text


@EACH
def test_tokens_are_right(kv: Bench) -> None:
    """A load is one transfer for each pair of ranks that share heads, and the heads land where they belong."""
    for times in (2, 6):
        request = kv.prefilled(times)
        assert kv.decode(request).completion == request.text
        _both_are_seen(kv, request)
        assert not kv.events("transfer_failure", request.name)


@ONE_READER
def test_one_read_fails_and_its_release_is_refused(kv: Bench, background: ThreadPoolExecutor) -> None:
    """The request waits with its blocks until NIXL lets go of them; then it is recomputed, for one reason, with right tokens."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request = kv.prefilled(6)
    with faults_of(kv.stack.decode.side_channel_port, fails=0, refused=0):
        answer = background.submit(kv.decode, request)
        until(lambda: _pinned(kv, request) == [False], "No blocks are pinned")
        until(lambda: kv.value("penstock_held_blocks", holder="pinned") > 0, "No gauge shows the blocks")
        assert not kv.events("load_outcome", request.name)
        assert not answer.done()
    assert answer.result().completion == request.text
    kv.closed(request)
    until(lambda: _pinned(kv, request) == [False, True], "The blocks are not let go")
    assert _modes(kv, request) == [c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_RELEASE]
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TRANSFER)
    assert outcome.tokens_recomputed == request.tokens
    _follows_rightly(kv, request)


@ONE_READER
def test_a_deadline_answers_the_client_of_a_load_that_has_failed(kv: Bench) -> None:
    """A refused release does not keep the client waiting for ever: it has its 503, and the blocks stay."""
    kv.enforce(kvLoadFailure={"action": "recompute"}, deferral={"maxTransferWait": "2s"})
    request = kv.prefilled(6)
    with faults_of(kv.stack.decode.side_channel_port, fails=0, refused=0):
        answer = kv.decode(request)
        assert answer.status == 503
        assert "mode transfer" in answer.body["error"]["message"]
        assert _pinned(kv, request) == [False]
    until(lambda: _pinned(kv, request) == [False, True], "The blocks are not let go")
    assert kv.outcome(request).outcome == c.OUTCOME_FAILED
    _follows_rightly(kv, request)


@TWO_READERS
def test_one_of_two_readers_fails(kv: Bench) -> None:
    """Each decode rank draws for itself: whatever fails, tokens are right and each request is decided once."""
    kv.enforce(kvLoadFailure={"action": "recompute"})

    def half_failed() -> Prefilled | None:
        request = kv.prefilled(6)
        assert kv.decode(request).completion == request.text
        _both_are_seen(kv, request)
        failed = [event.rank for event in kv.events("transfer_failure", request.name)]
        assert len(failed) == len(set(failed))
        assert len(kv.events("load_outcome", request.name)) == bool(failed)
        return request if len(failed) == 1 else None

    with kv.drill("transfer", rate=0.5):
        half = until(half_failed, "No transfer failed on one rank alone", seconds=120)

    outcome = kv.outcome(half)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TRANSFER)
    _follows_rightly(kv, half)
