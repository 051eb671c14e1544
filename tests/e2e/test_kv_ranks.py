"""Two tensor-parallel ranks under AsyncScheduler: each loads its part, and a request has one outcome."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import until
from tests.support.engine.pairs import ASYNC_FORK_TP2
from tests.support.kv.peers import garbled, impostor

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench, Prefilled

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [ASYNC_FORK_TP2], indirect=True, ids=["async-fork-tp2"]),
]


def _failed_ranks(kv: Bench, request: Prefilled) -> list[int]:
    """Return the ranks that told a failure of a request that decode has answered rightly."""
    kv.closed(request)
    outcomes = kv.events("load_outcome", request.name)
    if outcomes:
        kv.event("transfer_failure", request.name)
    return sorted(event.rank for event in kv.events("transfer_failure", request.name))


def _told_by_both(kv: Bench, name: str) -> bool:
    """Whether each rank has told one failure of a request."""
    return sorted(each.rank for each in kv.events("transfer_failure", name)) == [0, 1]


def _lines(kv: Bench) -> int:
    """Return how many lines vLLM's ranks have written about transfers that failed in decode."""
    return kv.stack.decode.child.log.read_text(errors="replace").count(
        "NIXL transfer failure: transfer_failed"
    )


def _follows_rightly(kv: Bench, request: Prefilled) -> None:
    """See that a request which shares the prefix of one that was recomputed has the right tokens."""
    follower = kv.prefilled(prompt=f"{request.prompt} and so on {uuid.uuid4().hex}")
    assert kv.decode(follower).completion == follower.text


def test_one_rank_fails_while_the_other_does_not(kv: Bench) -> None:
    """Each rank draws for itself: whatever fails, tokens are right and each request is decided once."""
    kv.enforce(kvLoadFailure={"action": "recompute"})

    def half_failed() -> Prefilled | None:
        request = kv.prefilled(6)
        assert kv.decode(request).completion == request.text
        ranks = _failed_ranks(kv, request)
        assert len(ranks) == len(set(ranks))
        outcomes = kv.events("load_outcome", request.name)
        assert len(outcomes) == (1 if ranks else 0)
        # A handshake that a loaded machine keeps waiting for longer than vLLM does fails without the drill.
        ours = all(event.load_outcome.mode == c.FAILURE_MODE_TRANSFER for event in outcomes)
        return request if len(ranks) == 1 and ours else None

    with kv.drill("transfer", rate=0.5):
        half = until(half_failed, "No transfer failed on one rank alone", seconds=120)

    outcome = kv.outcome(half)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TRANSFER)
    assert outcome.tokens_recomputed == half.tokens
    _follows_rightly(kv, half)


def test_both_ranks_fail_and_the_request_fails_once(kv: Bench) -> None:
    """Under `auto` a large request that no rank could load gets one 503 and one outcome, told by both ranks."""
    request = kv.prefilled(6)
    kv.enforce(kvLoadFailure={"action": "auto", "maxRecomputeTokens": request.tokens - 1})
    with kv.drill("exception"):
        answer = kv.decode(request)

    assert answer.status == 503
    assert "mode exception" in answer.body["error"]["message"]
    assert kv.outcome(request).outcome == c.OUTCOME_FAILED
    until(lambda: _told_by_both(kv, request.name), "Not each rank has told its failure once")
    _follows_rightly(kv, request)


@pytest.mark.long
def test_a_failed_handshake_of_both_ranks_is_recomputed(kv: Bench) -> None:
    """A real failure: what both ranks wait for does not come, and the request is computed once, rightly."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    with impostor(kv.stack.prefill, garbled) as other:
        request = kv.misled(6, port=other.port)
        assert kv.decode(request).completion == request.text

    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_HANDSHAKE)
    assert outcome.tokens_recomputed == request.tokens
    until(lambda: _told_by_both(kv, request.name), "Not each rank has told its failure once")
    _follows_rightly(kv, request)


@pytest.mark.long
def test_both_ranks_limit_their_log_lines_live(kv: Bench) -> None:
    """With an interval each rank writes one line for one peer, however many transfers fail; without it again all of them."""
    with kv.drill("transfer"):
        for spec, lines in (({"telemetry": {"failureLogInterval": "1h"}}, 2), ({}, 6)):
            before = _lines(kv)
            kv.enforce(kvLoadFailure={"action": "recompute"}, **spec)
            for _ in range(3):
                request = kv.prefilled()
                assert kv.decode(request).completion == request.text
                until(
                    partial(_told_by_both, kv, request.name),
                    "Not each rank has told its failure once",
                )
            assert _lines(kv) - before == lines
