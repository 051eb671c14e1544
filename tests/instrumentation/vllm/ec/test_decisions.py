"""What is decided about requests whose encoder outputs could not be loaded, and how they fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.resilience.policy import NO_POLICY, Action, EcLoadFailure, Policy, PolicyBody
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.protocol import EcFailure
from penstock.instrumentation.vllm.recovery import rewind

from tests.support.ec.fake_ec import ERROR, LEFT, TOY_PEER, ToyEcEngine, expected, image_request
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

OUTPUTS = 4
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
RECOMPUTED, FAILED = c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED


def act(action: str, items: int | None = None, **more: Any) -> None:
    """Put a policy for failed loads of items in force."""
    runtime.policy.swap(policy(ec=EcLoadFailure(Action(action), items), **more), 1.0)


def image(request_id: str, *names: str, **arguments: Any) -> Any:
    """Return a request with an image of 40 embeddings at each 64th token from the 10th on, and some text."""
    items = {10 + 64 * index: (name, 40) for index, name in enumerate(names)}
    return image_request(
        request_id, items, **{"tokens": 64 * len(names) + 30, "max_tokens": OUTPUTS, **arguments}
    )


def outcome_of(recorder: Recorder, request: Any) -> Any:
    """Return the one outcome of a request."""
    (outcome,) = recorder.take("load_outcome", request.request_id)
    return outcome


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
    assert "3 items lost, at most 2 are recomputed" in engine.errors["three"]
    found = recorder.take("load_outcome", "three")
    assert [each.outcome for each in found] == [RECOMPUTED, RECOMPUTED, FAILED]
    assert [each.items_recomputed for each in found] == [1, 1, 1]


@KINDS
def test_a_connector_keeps_its_own_default_in_a_pause(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Its loads stay guarded: it is no policy of ours that is put off, and without a guard the engine would end."""
    scheduler = make_ec_scheduler(kind, connector="ToyLoader")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first = image("first", "a")
    runtime.pause("policy", paused=True)
    try:
        engine.run(first)
    finally:
        runtime.pause("policy", paused=False)
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert not recorder.take("load_outcome")


@KINDS
def test_without_media(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request whose media is not here fails whatever the policy says; also one that comes while the item is bad."""
    scheduler = make_ec_scheduler(kind)
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first, sharer = image("first", "a", media=False), image("sharer", "a", tokens=200)
    engine.run(first, sharer)
    late = image("late", "a", media=False, first=400)
    assert "the media is not on this engine" in engine.errors["first"]
    assert engine.outputs["sharer"] == expected(sharer, OUTPUTS)
    # What was encoded here meanwhile serves it well.
    engine.run(late)
    assert engine.outputs["late"] == expected(late, OUTPUTS)
    scheduler.encoder_cache_manager.reset()
    engine.cache.clear()
    later = image("later", "a", media=False, first=401)
    engine.run(later)
    assert "the media is not on this engine" in engine.errors["later"]
    assert outcome_of(recorder, later).mode == c.FAILURE_MODE_LOAD


@KINDS
@pytest.mark.parametrize("chunk", [1024, 64], ids=["whole", "chunks"])
def test_gone_without_media(
    kind: str, chunk: int, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """An item that is not there any more and cannot be encoded here fails its request, also in mid-prefill; vLLM would end the engine."""
    scheduler = make_ec_scheduler(kind, chunk=chunk)
    act("recompute")
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    first, other = image("first", "a", "gone", media=False), image("other", "b", first=400)
    engine.run(first, other)
    assert "the media is not on this engine, it cannot encode 1 items" in engine.errors["first"]
    assert engine.outputs["first"] == []
    assert engine.outputs["other"] == expected(other, OUTPUTS)
    found = outcome_of(recorder, first)
    assert (found.outcome, found.mode, found.error_type) == (
        FAILED,
        c.FAILURE_MODE_PROBE,
        c.ERROR_TYPE_EVICTED,
    )
    manager = scheduler.encoder_cache_manager
    assert manager.num_freeable_slots == manager.cache_size


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


def test_gone_without_media_nor_policy(make_ec_scheduler: MakeScheduler) -> None:
    """Without a policy vLLM's own behaviour stays: the item is scheduled to be encoded."""
    scheduler = make_ec_scheduler()
    engine = ToyEcEngine(scheduler, ahead=False)
    with pytest.raises(AssertionError, match="first is to encode gone without media"):
        engine.run(image("first", "gone", media=False))


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


@KINDS
@pytest.mark.parametrize(
    ("default", "action", "media", "outcome", "decided_by"),
    [
        ("recompute", "", True, RECOMPUTED, c.DECIDED_BY_VLLM),
        ("fail", "", True, FAILED, c.DECIDED_BY_VLLM),
        ("recompute", "fail", True, FAILED, c.DECIDED_BY_POLICY),
        ("fail", "recompute", True, RECOMPUTED, c.DECIDED_BY_POLICY),
        ("recompute", "", False, FAILED, c.DECIDED_BY_VLLM),
    ],
)
@pytest.mark.parametrize("where", ["before scheduling", "in the worker"])
def test_a_loader(
    kind: str,
    default: str,
    action: str,
    media: bool,
    outcome: int,
    decided_by: int,
    where: str,
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """A connector that moves items ahead of scheduling has a default of its own, which a policy overrides."""
    scheduler = make_ec_scheduler(kind, connector="ToyLoader", extra={"load_failure": default})
    if action:
        act(action)
    assert recorder.snapshot().policy.ec_action == (action or default)
    connector = scheduler.ec_connector
    engine = ToyEcEngine(scheduler, ahead=kind == "async", bad={"a"}.__contains__)
    first = image("first", "a", media=media)
    scheduler.add_request(first)
    if where == "in the worker":
        connector.store |= {"a"}
    else:
        connector.coming |= {"a"}
        connector.began["a"] = 4711
        engine.step()
        (gauge,) = recorder.snapshot().in_flight
        assert (gauge.channel, gauge.peer.address, gauge.count) == (c.CHANNEL_EC, TOY_PEER.address, 1)
        connector.failed.append(
            EcFailure("a", c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET, "gone", TOY_PEER)
        )
    engine.run()
    found = outcome_of(recorder, first)
    assert (found.outcome, found.decided_by) == (outcome, decided_by)
    assert found.peer.address == TOY_PEER.address
    if outcome == RECOMPUTED:
        assert engine.outputs["first"] == expected(first, OUTPUTS)
        assert not engine.errors
    else:
        assert engine.errors.keys() == {"first"}
        assert f"peer {TOY_PEER.address}" in engine.errors["first"]


@pytest.mark.parametrize(
    ("connector", "action", "media", "told"),
    [
        ("ToyLoader", "", False, True),
        ("ToyLoader", "", True, True),
        ("ToyEcConnector", "recompute", False, True),
        ("ToyEcConnector", "", False, False),
    ],
)
def test_a_request_that_the_connector_fails(
    connector: str,
    action: str,
    media: bool,
    told: bool,
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
) -> None:
    """An item that the connector cannot obtain has an outcome; its client gets the reason unless vLLM reports it."""
    scheduler = make_ec_scheduler(connector=connector)
    if action:
        act(action)
    scheduler.ec_connector.coming |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=False)
    first = image("first", "a", media=media)
    scheduler.add_request(first)
    engine.step()
    scheduler.ec_connector.lost |= {"first"}
    engine.run()
    found = outcome_of(recorder, first)
    assert (found.outcome, found.decided_by) == (FAILED, c.DECIDED_BY_VLLM)
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED)
    assert ("nor encoded here" in found.reason) is not media
    assert engine.errors.keys() == {"first"}
    assert ("mode probe" in (engine.errors["first"] or "")) is told
    assert not scheduler._penstock.ec.failing


def test_probes_of_a_connector_that_only_looks(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Each item that gets its room is one probe: a hit is loaded, a miss encoded here."""
    scheduler = make_ec_scheduler()
    scheduler.ec_connector.store |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=False)
    engine.run(image("first", "a", "b"))
    assert sorted(probe["result"] for probe in recorder.probes) == [c.PROBE_RESULT_HIT, c.PROBE_RESULT_MISS]
    assert (engine.loaded, engine.encoded) == (["a"], ["b"])


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


def test_who_waits_for_its_kv_on_tainted_blocks_fails(
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
