"""A hybrid KV cache, and speculative decoding on the decode side, over NIXL: failures are decided as in any engine, with the right tokens."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.client import fetch
from demo.common.metrics import Metrics
from tests.support.engine.hybrid_model import WINDOW
from tests.support.engine.pairs import HYBRID, NGRAM
from tests.support.kv.peers import signal_group

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench, Prefilled

pytestmark = [pytest.mark.engine, pytest.mark.long]

_BOTH = pytest.mark.parametrize("stack", [HYBRID, NGRAM], indirect=True, ids=["hybrid", "ngram"])
# Sentences of a prompt that is longer than the window by several blocks.
LONG = 10


def _is_recomputed(kv: Bench, request: Prefilled, mode: int) -> None:
    """See that a request's failed load was decided once, by the policy, and computed as a whole."""
    assert kv.failure(request).mode == mode
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.mode, outcome.decided_by) == (
        c.OUTCOME_RECOMPUTED,
        mode,
        c.DECIDED_BY_POLICY,
    )
    assert outcome.tokens_recomputed == request.tokens


@pytest.mark.parametrize("stack", [HYBRID], indirect=True, ids=["hybrid"])
def test_a_hybrid_cache_moves_two_groups(kv: Bench) -> None:
    """Prefill names the blocks of both groups; of the sliding one only those in the window are read."""
    request = kv.prefilled(LONG)
    full, sliding = sorted(request.params["remote_block_ids"], key=len, reverse=True)
    assert len(sliding) < len(full)
    assert request.tokens > 2 * WINDOW

    assert kv.decode(request).completion == request.text

    loaded = kv.closed(request).request_closed.external_cached_tokens
    assert 0 < loaded <= request.tokens
    assert not kv.events("transfer_failure", request.name)


@pytest.mark.parametrize("stack", [NGRAM], indirect=True, ids=["ngram"])
def test_decode_speculates_behind_a_load(kv: Bench) -> None:
    """Decode drafts tokens, prefill does not; what is answered is what prefill answers alone."""
    request = kv.prefilled(LONG)

    assert kv.decode(request).completion == request.text

    assert kv.closed(request).request_closed.external_cached_tokens > 0
    own = Metrics.parse(fetch(f"{kv.stack.decode.url}/metrics").text)
    assert own.value("vllm:spec_decode_num_draft_tokens_total") > 0


@_BOTH
def test_a_load_from_a_closed_port_is_recomputed(kv: Bench) -> None:
    """Nothing listens where decode is sent."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request = kv.misled(LONG)

    assert kv.decode(request).completion == request.text

    _is_recomputed(kv, request, c.FAILURE_MODE_HANDSHAKE)


@_BOTH
def test_a_rehearsed_failure_is_recomputed(kv: Bench) -> None:
    """A drill in the transfer, and a request that shares the prefix afterwards."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request = kv.prefilled(LONG)
    with kv.drill("transfer"):
        assert kv.decode(request).completion == request.text
    _is_recomputed(kv, request, c.FAILURE_MODE_TRANSFER)

    follower = kv.prefilled(prompt=f"{request.prompt} and so on")
    assert kv.decode(follower).completion == follower.text
    assert not kv.events("transfer_failure", follower.name)


@_BOTH
def test_a_failed_load_ends_the_request(kv: Bench) -> None:
    """Under `fail` it is a retryable 503, and the next request is served."""
    kv.enforce(kvLoadFailure={"action": "fail"})
    request = kv.prefilled(LONG)
    with kv.drill("transfer"):
        assert kv.decode(request).status == 503
    assert kv.outcome(request).outcome == c.OUTCOME_FAILED

    good = kv.prefilled(LONG)
    assert kv.decode(good).completion == good.text


@_BOTH
@pytest.mark.ends_servers
def test_a_peer_that_is_killed_behind_the_handshake_is_recomputed(kv: Bench) -> None:
    """``kill -9`` of prefill between its answer and decode's read."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request = kv.prefilled(LONG)
    signal_group(kv.stack.prefill, signal.SIGKILL)

    assert kv.decode(request).completion == request.text

    assert kv.event("transfer_failure", request.name).transfer_failure.peer.address == request.peer
    outcome = kv.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert outcome.tokens_recomputed == request.tokens
