"""`auto`: which requests recompute and which fail, decided one by one, and their clients' errors."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.vllm.recovery.error_facts import RETRY_MAX_S
from penstock.proto.v1 import common_pb2 as c

from demo.common.processes import free_port
from tests.support.engine.client_errors import facts_of
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.engine.versions import VERSION
from tests.support.kv.peers import garbled, impostor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Impostor

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


@pytest.fixture
def bad(kv: Bench) -> Iterator[Impostor]:
    """Give a peer with which every handshake fails at once."""
    with impostor(kv.stack.prefill, garbled) as running:
        yield running


def _says_retry(message: str, mode: str, peer: str) -> bool:
    return all(part in message for part in ("KV load failure", f"mode {mode}", peer, "can be retried"))


def _is_told(error: Mapping[str, Any], request: Prefilled, decided_by: str) -> dict[str, Any]:
    """Return the object for machines, which names the peer that *request* was sent to."""
    told = facts_of(error)
    assert told["peer"] == {"address": request.peer, "engine_id": request.engine_id}
    assert (told["channel"], told["mode"], told["decided_by"]) == ("kv", "handshake", decided_by)
    assert (told["retryable"], told["blocks_held"], told["held_until"]) == (True, None, None)
    return told


def test_short_ones_recompute_and_long_ones_fail_in_one_step(kv: Bench) -> None:
    """Four requests wait for one handshake with a closed port, streaming and not; each gets its own answer."""
    port, engine_id = free_port(), str(uuid.uuid4())
    short, long, short_stream, long_stream = (
        kv.misled(times, port=port, engine_id=engine_id) for times in (1, 12, 1, 12)
    )
    limit = max(short.tokens, short_stream.tokens)
    assert limit < min(long.tokens, long_stream.tokens)
    kv.enforce(kvLoadFailure={"action": "auto", "maxRecomputeTokens": limit})

    with ThreadPoolExecutor(4) as senders:
        answers = [senders.submit(kv.decode, each) for each in (short, long)]
        streams = [senders.submit(kv.decode_streaming, each) for each in (short_stream, long_stream)]
        recomputed, failed = (answer.result() for answer in answers)
        streamed, broken = (stream.result() for stream in streams)

    assert recomputed.completion == short.text
    assert failed.status == 503
    assert _says_retry(failed.body["error"]["message"], "handshake", long.peer), failed.text
    _is_told(failed.body["error"], long, decided_by="policy")
    assert failed.retry_after == "1"
    named = re.search(rf"\(policy {kv.policy}, generation (\d+)\)\. ", failed.body["error"]["message"])
    assert named is not None, failed.text
    kv.outcome(long)
    explained = kv.ctl("explain", long.name)
    assert f"decided by policy {kv.policy} (generation {named[1]}, by tests)" in explained
    assert (streamed.status, streamed.text, streamed.error) == (200, short_stream.text, {})
    if VERSION >= (0, 32):
        assert broken.error.get("code") == 503
        assert _says_retry(str(broken.error["message"]), "handshake", long.peer), broken
        _is_told(broken.error, long_stream, decided_by="policy")
    else:  # Until 0.31 vLLM ends a stream that has no token yet without an error.
        assert broken.error == {}
    for request, outcome in (
        (short, c.OUTCOME_RECOMPUTED),
        (short_stream, c.OUTCOME_RECOMPUTED),
        (long, c.OUTCOME_FAILED),
        (long_stream, c.OUTCOME_FAILED),
    ):
        decided = kv.outcome(request)
        assert (decided.outcome, decided.decided_by) == (outcome, c.DECIDED_BY_POLICY)
        assert decided.tokens_recomputed == request.tokens
        assert f"{request.tokens} tokens lost, at most {limit}" in decided.reason
        # A machine that has no time for the engine's own attempt at the port leaves it a timeout.
        assert kv.failure(request).error_type in (c.ERROR_TYPE_REFUSED, c.ERROR_TYPE_TIMEOUT)
    attributes = kv.span(long, "penstock.request").attributes
    assert attributes["penstock.outcome"] == "failed"
    assert f"at most {limit}" in attributes["penstock.reason"]
    assert attributes["penstock.policy.name"] == kv.policy
    assert str(attributes["penstock.policy.generation"]) == named[1]
    assert attributes["penstock.policy.author"] == "tests"


def test_an_exhausted_budget_decides(kv: Bench, bad: Impostor) -> None:
    """The first takes all of the budget; the next ones go by overBudget, and say so."""
    requests = [kv.misled(4, port=bad.port) for _ in range(3)]
    limit = max(request.tokens for request in requests)
    rule = {
        "action": "auto",
        "maxRecomputeTokens": limit,
        "recomputeBudget": {"tokensPerSecond": 1},
        "overBudget": "fail",
    }
    kv.enforce(kvLoadFailure=rule)

    inside, over = kv.decode(requests[0]), kv.decode(requests[1])
    kv.enforce(kvLoadFailure={**rule, "overBudget": "recompute"})
    still = kv.decode(requests[2])

    assert (inside.status, over.status, still.status) == (200, 503, 200)
    assert (inside.completion, still.completion) == (requests[0].text, requests[2].text)
    assert "budget" in over.body["error"]["message"]
    told = _is_told(over.body["error"], requests[1], decided_by="budget")
    # The first took all, and each second brings one token; how many have passed depends on the machine.
    assert 1 <= told["retry_after_s"] <= min(requests[1].tokens, RETRY_MAX_S)
    assert over.retry_after == str(told["retry_after_s"])
    decided = [kv.outcome(request) for request in requests]
    assert [(each.outcome, each.decided_by) for each in decided] == [
        (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY),
        (c.OUTCOME_FAILED, c.DECIDED_BY_BUDGET),
        (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_BUDGET),
    ]
    labels = {"peer": bad.peer, "outcome": "failed", "decided_by": "budget"}
    kv.wait_value(1, "penstock_load_outcomes_total", **labels)


def test_observe_reports_and_does_not_act(kv: Bench, bad: Impostor) -> None:
    """What vLLM is set to, `fail`, holds, with its own answer; the event has what the policy would have done."""
    request = kv.misled(port=bad.port)
    kv.enforce(mode="observe", kvLoadFailure={"action": "auto", "maxRecomputeTokens": request.tokens})

    answer = kv.decode(request)

    assert answer.status == 500
    decided = kv.outcome(request)
    assert (decided.outcome, decided.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_VLLM)
    assert decided.observed_outcome == c.OUTCOME_RECOMPUTED
    assert f"at most {request.tokens}" in decided.observed_reason
    assert kv.span(request, "penstock.request").attributes["penstock.observed_outcome"] == "recomputed"
