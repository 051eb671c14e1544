"""What a policy decides about single requests whose load from a peer failed, with vLLM's own NIXL connector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import Action

from tests.support.engine.client_errors import sent_facts
from tests.support.engine.parked import fail_loads, park, serve, stop_reasons
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
RECOMPUTED, FAILED = c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED


def outcome_of(recorder: Recorder, request: Any) -> Any:
    """Return the one outcome of a request."""
    (outcome,) = recorder.take("load_outcome", request.request_id)
    return outcome


@pytest.mark.parametrize(
    ("rule", "outcome", "decided_by", "words"),
    [
        ({"max_recompute_tokens": 96}, RECOMPUTED, c.DECIDED_BY_POLICY, "96 tokens lost, at most 96"),
        ({"max_recompute_tokens": 95}, FAILED, c.DECIDED_BY_POLICY, "96 tokens lost, at most 95"),
        ({}, RECOMPUTED, c.DECIDED_BY_POLICY, "any number is recomputed"),
        ({"tokens_per_second": 96}, RECOMPUTED, c.DECIDED_BY_POLICY, "96 tokens lost"),
        ({"tokens_per_second": 10}, FAILED, c.DECIDED_BY_BUDGET, "overBudget: fail"),
        (
            {"tokens_per_second": 10, "over_budget": Action.RECOMPUTE},
            RECOMPUTED,
            c.DECIDED_BY_BUDGET,
            "overBudget: recompute",
        ),
    ],
)
def test_auto(
    rule: dict[str, Any],
    outcome: int,
    decided_by: int,
    words: str,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """``auto`` recomputes what is small enough and within the budget; the reason says which bound decided."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("auto", **rule), 1.0)
    parked = park(scheduler, "r")
    fail_loads(scheduler, parked)
    serve(scheduler, parked)
    found = outcome_of(recorder, parked)
    assert (found.outcome, found.decided_by, found.policy_hash) == (outcome, decided_by, "hash-auto")
    assert words in found.reason
    assert recorder.snapshot().policy.kv_action == "auto"


@KINDS
def test_each_request_of_a_step_by_itself(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Two loads fail in one step: one request recomputes, the other fails with its reason."""
    scheduler = make_scheduler(kind)
    runtime.policy.swap(policy("auto", max_recompute_tokens=3 * BLOCK), 1.0)
    small = park(scheduler, "small", first=400)
    large = park(scheduler, "large", first=401, tokens=5 * BLOCK)
    told = stop_reasons(fail_loads(scheduler, small, large))
    assert told == {
        "large": "penstock.load_failure: KV load failure (mode handshake, peer unknown): "
        "160 tokens lost, at most 96 are recomputed (policy hash-auto). The request can be retried."
    }
    serve(scheduler, small, large)
    assert outcome_of(recorder, small).outcome == RECOMPUTED
    assert outcome_of(recorder, large).outcome == FAILED
    assert [closed.finish_reason for closed in recorder.take("request_closed")] == ["error", "length"]


def test_the_budget_is_shared(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Recomputes take from one budget until it is empty; what an operator ordered outright does not count."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("auto", tokens_per_second=2 * 96), 1.0)
    parked = [park(scheduler, f"r{index}", first=400 + index) for index in range(3)]
    (facts,) = sent_facts(fail_loads(scheduler, *parked)).values()
    assert sorted(outcome_of(recorder, each).outcome for each in parked) == [RECOMPUTED, RECOMPUTED, FAILED]
    # Half a second brings what it lost.
    assert facts is not None
    assert (facts["decided_by"], facts["retry_after_s"]) == ("budget", 1)
    runtime.policy.swap(policy("recompute", tokens_per_second=2 * 96), 1.0)
    ordered = park(scheduler, "ordered", first=410)
    fail_loads(scheduler, ordered)
    assert outcome_of(recorder, ordered).outcome == RECOMPUTED


@pytest.mark.parametrize("own", ["fail", "recompute"])
def test_no_policy_says_nothing_to_the_client(
    own: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Without a policy vLLM's own answer stays as it is, and so it is for a policy in mode observe."""
    scheduler = make_scheduler(own=own)
    runtime.policy.swap(policy("", observed="auto"), 1.0)
    parked = park(scheduler, "r")
    outputs = fail_loads(scheduler, parked)
    assert stop_reasons(outputs) == ({"r": None} if own == "fail" else {})
    assert not any(sent_facts(outputs).values())
    found = outcome_of(recorder, parked)
    assert (found.decided_by, found.observed_outcome) == (c.DECIDED_BY_VLLM, RECOMPUTED)
    assert "any number" in found.observed_reason


@KINDS
@pytest.mark.parametrize("first", ["recompute", "fail"])
def test_the_first_decision_stays(
    kind: str, first: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A second rank reports the same load later, under another policy: the decision stays, and is reported once."""
    scheduler = make_scheduler(kind, own="fail")
    runtime.policy.swap(policy(first), 1.0)
    parked = park(scheduler, "r")
    lost = {block for group in scheduler.kv_cache_manager.get_block_ids("r") for block in group}
    step(scheduler, invalid_block_ids=lost)
    runtime.policy.swap(policy("fail" if first == "recompute" else "recompute"), 1.0)
    step(scheduler, finished_recving={"r"}, failed_recving={"r"}, invalid_block_ids=lost)
    serve(scheduler, parked)
    assert outcome_of(recorder, parked).policy_hash == f"hash-{first}"
    (closed,) = recorder.take("request_closed")
    assert closed.finish_reason == ("length" if first == "recompute" else "error")


def test_rehearsal_is_marked(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The outcome of a load that a fault drill broke is marked as a rehearsal."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute"), 1.0)
    fail_loads(scheduler, park(scheduler, "r"), rehearsal=True)
    (event,) = [event for event in recorder.events if event.WhichOneof("body") == "load_outcome"]
    assert event.rehearsal
    assert event.load_outcome.mode == c.FAILURE_MODE_HANDSHAKE


def test_nothing_is_kept(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """When failed and recomputed requests have left, nothing is remembered of them."""
    scheduler = make_scheduler()
    for index, action in enumerate(("fail", "recompute")):
        runtime.policy.swap(policy(action), 1.0)
        parked = park(scheduler, f"r{index}", first=400 + index)
        fail_loads(scheduler, parked)
        serve(scheduler, parked)
        assert outcome_of(recorder, parked).attempt == 1
    loads = scheduler._penstock.loads
    assert not loads.failing
    assert not loads._peers._loading
    assert not len(loads.deadlines._deadlines)
    assert not scheduler._penstock.observer._records
