"""What is decided about requests whose encoder outputs could not be loaded, and how they fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.recovery import rewind
from penstock.rules.policy import NO_POLICY, Action, EcLoadFailure, Policy, PolicyBody

from tests.support.ec.decisions import OUTPUTS, act, image, outcome_of
from tests.support.ec.fake_ec import ERROR, LEFT, ToyEcEngine, expected
from tests.support.engine.schedulers import BLOCK
from tests.support.engine.versions import VERSION, from_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
RECOMPUTED, FAILED = c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED


@KINDS
def test_fail(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """All requests that used the bad item fail without a token, with an error; a later one encodes it here."""
    scheduler = make_ec_scheduler(kind)
    act("fail")
    scheduler.ec_connector.store |= {"a", "b"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first, sharer = image("first", "a"), image("sharer", "a", tokens=200)
    other = image("other", "b", first=400)
    engine.run(first, sharer, other)
    assert engine.errors.keys() == {"first", "sharer"}
    assert engine.errors["first"] == (
        "penstock.load_failure: EC load failure (mode load, peer unknown): ecLoadFailure.action: fail (policy hash-). "
        "The request can be retried."
    )
    assert engine.outputs["first"] == engine.outputs["sharer"] == []
    found = outcome_of(recorder, first)
    assert (found.outcome, found.decided_by, found.mode, found.error_type, found.items_recomputed) == (
        FAILED,
        c.DECIDED_BY_POLICY,
        c.FAILURE_MODE_LOAD,
        c.ERROR_TYPE_CORRUPT,
        1,
    )
    assert found.connector == "ToyEcConnector"
    again = image("again", "a")
    engine.run(again)
    for each in (other, again):
        assert engine.outputs[each.request_id] == expected(each, OUTPUTS)


@KINDS
def test_auto_by_the_number_of_items(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """In one step the request that lost one item encodes it, and the one that lost two fails."""
    scheduler = make_ec_scheduler(kind)
    act("auto", 1)
    scheduler.ec_connector.store |= {"a", "b", "c"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a", "b", "c"}.__contains__)
    one, two = image("one", "a"), image("two", "b", "c", first=400)
    engine.run(one, two)
    assert engine.outputs["one"] == expected(one, OUTPUTS)
    assert "2 items lost, at most 1 are recomputed" in engine.errors["two"]
    assert (outcome_of(recorder, one).outcome, outcome_of(recorder, two).outcome) == (RECOMPUTED, FAILED)


@KINDS
def test_auto_counts_what_a_request_has_lost_in_all(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Chunk by chunk it loses three items one at a time; the third is one too many."""
    scheduler = make_ec_scheduler(kind, chunk=64)
    act("auto", 2)
    scheduler.ec_connector.store |= {"a", "b", "c"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a", "b", "c"}.__contains__)
    three = image("three", "a", "b", "c")
    engine.run(three)
    if kind == "async" and VERSION < (0, 27):
        # It was scheduled again before the second result was in, and the third load belonged to that step.
        assert engine.outputs["three"] == expected(three, OUTPUTS)
        return
    assert "3 items lost, at most 2 are recomputed" in engine.errors["three"]
    found = recorder.take("load_outcome", "three")
    assert [each.outcome for each in found] == [RECOMPUTED, RECOMPUTED, FAILED]
    assert [each.items_recomputed for each in found] == [1, 1, 1]


class Appearing(set[str]):
    """A store in which an item is found from the second look on, as a file that its producer begins to write just now."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: set[object] = set()

    def __contains__(self, item: object) -> bool:
        """Look."""
        there = item in self.looked
        self.looked.add(item)
        return there


@KINDS
def test_it_appears_while_it_is_planned_to_be_encoded(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """An item encoded here in a step is not also loaded in it: that load would be unguarded."""
    scheduler = make_ec_scheduler(kind)
    act("recompute")
    scheduler.ec_connector.store = Appearing()
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first = image("first", "a")
    engine.run(first)
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert (engine.loaded, engine.encoded) == ([], ["a"])
    assert not recorder.take("load_outcome")


@KINDS
def test_an_error_of_our_own_lets_nothing_bad_out(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the rewind raises, all requests that may have used the bad item fail, and no cache holds it or its results."""
    scheduler = make_ec_scheduler(kind)
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__, keeps_held=True)
    first, sharer = image("first", "a"), image("sharer", "a", tokens=200)
    other = image("other", "b", first=400)

    def broken(*_arguments: Any) -> Any:
        raise LookupError("broken")

    monkeypatch.setattr(guard, "raising", False)
    with monkeypatch.context() as patch:
        patch.setattr(rewind, "spread", broken)
        engine.run(first, sharer, other)
    assert engine.errors.keys() == {"first", "sharer"}
    assert engine.outputs["first"] == engine.outputs["sharer"] == []
    later = image("later", "a", tokens=300)
    engine.run(later)
    for each in (other, later):
        assert engine.outputs[each.request_id] == expected(each, OUTPUTS)
    assert guard.counts.drain() == {("scheduler", "LookupError"): 1}


@KINDS
def test_what_may_be_exported_fails(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A KV connector that saves may have passed tainted blocks on: those requests fail."""
    scheduler = make_ec_scheduler(
        kind,
        kv_connector="ToyConnector",
        kv_connector_module_path="tests.support.kv.fake_connector",
        kv_role="kv_both",
    )
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    engine.run(image("first", "a"))
    assert "may have passed tainted blocks on" in engine.errors["first"]


@pytest.mark.parametrize("observed", [None, PolicyBody(ec_load_failure=EcLoadFailure(Action.RECOMPUTE))])
def test_vllms_own_behaviour_without_a_policy(
    observed: PolicyBody | None, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Without a policy, and with one in mode observe, a load that fails ends the engine, as vLLM does it."""
    scheduler = make_ec_scheduler()
    scheduler.ec_connector.store |= {"a"}
    runtime.policy.swap(Policy(hash="hash", observed=observed), 1.0)
    engine = ToyEcEngine(scheduler, ahead=False, bad={"a"}.__contains__)
    with pytest.raises(RuntimeError, match="cannot load a"):
        engine.run(image("first", "a"))
    assert not recorder.take("load_outcome")


@KINDS
@pytest.mark.parametrize("gone", ["policy", "active"])
def test_what_was_begun_is_cleared_up(
    kind: str, gone: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A policy that ends, or a pause, between a load and its result: no output comes from the placeholder."""
    scheduler = make_ec_scheduler(kind)
    act("fail")
    scheduler.ec_connector.store |= {"a"}

    def bad(_item: str) -> bool:
        if gone == "policy":
            runtime.policy.swap(NO_POLICY, 1.0)
        else:
            runtime.pause("policy", paused=True)
        return True

    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad=bad)
    first = image("first", "a")
    try:
        engine.run(first)
    finally:
        runtime.pause("policy", paused=False)
    assert engine.outputs["first"] == expected(first, OUTPUTS)


@from_version(0, 27, "schedules it again before the result is in, so that there is something to recompute")
def test_preempted_before_the_result_was_in(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request is preempted while its tainted step is under way: the token that vLLM would still deliver is dropped."""
    scheduler = make_ec_scheduler("async")
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=True, bad={"a"}.__contains__)
    first = image("first", "a")
    scheduler.add_request(first)
    engine.step()
    scheduler.running.remove(first)
    scheduler._preempt_request(first, time.monotonic())
    engine.run()
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert outcome_of(recorder, first).tokens_recomputed == 0


@KINDS
def test_aborted_before_the_result_was_in(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The client aborts during the tainted step: its blocks are not found in the prefix cache."""
    scheduler = make_ec_scheduler(kind)
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first, later = image("first", "a"), image("later", "a", tokens=300)
    scheduler.add_request(first)
    scheduled = scheduler.schedule()
    output = engine._execute(scheduled)
    scheduler.finish_requests("first", LEFT)
    scheduler.update_from_output(scheduled, output)
    engine.run(later)
    assert engine.outputs["later"] == expected(later, OUTPUTS)
    assert not recorder.take("load_outcome")


def test_tokens_kept(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What was computed in front of the item's block stays."""
    scheduler = make_ec_scheduler()
    act("recompute")
    scheduler.ec_connector.store |= {"a", "b"}
    engine = ToyEcEngine(scheduler, ahead=False, bad={"b"}.__contains__)
    first = image("first", "a", "b")
    engine.run(first)
    found = outcome_of(recorder, first)
    assert (found.tokens_kept, found.tokens_recomputed) == (2 * BLOCK, 158 - 2 * BLOCK)


def test_a_request_that_waits_for_its_kv_on_tainted_blocks_fails(
    make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request that found tainted blocks and is parked for the rest of its KV cannot be rewound: its blocks are being written to."""
    scheduler = make_ec_scheduler(
        "async",
        kv_connector="ToyConnector",
        kv_connector_module_path="tests.support.kv.fake_connector",
        kv_role="kv_consumer",
    )
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=True, bad={"a"}.__contains__)
    first = image("first", "a")
    scheduler.add_request(first)
    engine.step()
    parked = image("parked", "a", tokens=300, params={"stored": 256, "waits": True})
    scheduler.add_request(parked)
    engine.step()
    found = outcome_of(recorder, parked)
    assert (found.outcome, found.mode) == (FAILED, c.FAILURE_MODE_COLLATERAL)
    assert "cannot be rewound" in engine.errors["parked"]
    # vLLM keeps the blocks of a parked request until its load has ended.
    assert parked.status == ERROR
    while "first" in scheduler.requests:
        engine.step()
    assert engine.outputs["first"] == expected(first, OUTPUTS)


def test_what_a_policy_in_mode_observe_would_have_done(
    make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """It decides and is reported, and does not act."""
    scheduler = make_ec_scheduler(connector="ToyLoader")
    scheduler.ec_connector.store |= {"a", "b"}
    body = PolicyBody(ec_load_failure=EcLoadFailure(Action.AUTO, 1))
    runtime.policy.swap(Policy(hash="hash", observed=body), 1.0)
    engine = ToyEcEngine(scheduler, ahead=False, bad={"a", "b"}.__contains__)
    first = image("first", "a", "b")
    engine.run(first)
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    found = outcome_of(recorder, first)
    assert (found.outcome, found.decided_by, found.observed_outcome) == (
        RECOMPUTED,
        c.DECIDED_BY_VLLM,
        FAILED,
    )
    assert "2 items lost" in found.observed_reason
