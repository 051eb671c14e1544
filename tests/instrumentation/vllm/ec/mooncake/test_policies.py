"""What becomes of requests whose pushes fail, do not come or are late: by vLLM, by policy, by deadline."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import Drill, Orders
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import errored_requests
from penstock.instrumentation.vllm.ec import waits
from penstock.rules.policy import Action, Deferral, EcLoadFailure

from tests.support.ec.decisions import OUTPUTS, act, image, outcome_of
from tests.support.ec.fake_ec import expected
from tests.support.ec.mooncake import expects, transfer_of
from tests.support.engine.recorder import policy
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakePair = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning")
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
BY_POLICY = pytest.mark.parametrize(
    ("action", "items", "media", "outcome", "decided_by"),
    [
        ("", None, True, c.OUTCOME_FAILED, c.DECIDED_BY_VLLM),
        ("", None, False, c.OUTCOME_FAILED, c.DECIDED_BY_VLLM),
        ("recompute", None, True, c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY),
        ("recompute", None, False, c.OUTCOME_FAILED, c.DECIDED_BY_POLICY),
        ("auto", 2, True, c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY),
        ("auto", 0, True, c.OUTCOME_FAILED, c.DECIDED_BY_POLICY),
        ("fail", None, True, c.OUTCOME_FAILED, c.DECIDED_BY_POLICY),
    ],
)
RECOMPUTED = c.OUTCOME_RECOMPUTED


def check(
    pair: Any, recorder: Recorder, request: Any, outcome: int, decided_by: int, *, told: bool, mode: str
) -> Any:
    """Check the outcome of a request and what its client gets, a sentence if it is *told*; return the outcome."""
    engine, found = pair.engine, outcome_of(recorder, request)
    assert (found.outcome, found.decided_by, found.channel) == (outcome, decided_by, c.CHANNEL_EC)
    if outcome == RECOMPUTED:
        assert engine.outputs[request.request_id] == expected(request, OUTPUTS)
        assert not engine.errors
    else:
        assert engine.errors.keys() == {request.request_id}
        assert (mode in (engine.errors[request.request_id] or "")) is told
    assert not engine.scheduler._penstock.ec.failing
    assert not errored_requests(engine.scheduler)
    assert not engine.scheduler._penstock.ec._loads._without
    return found


@KINDS
@BY_POLICY
def test_a_load_that_fails(
    kind: str,
    action: str,
    items: int | None,
    media: bool,
    outcome: int,
    decided_by: int,
    make_pair: MakePair,
    recorder: Recorder,
) -> None:
    """The pushed item is gone when the worker is to load it: what vLLM ends, a policy may have encoded here, with the same tokens."""
    pair = make_pair(kind)
    if action:
        act(action, items)
    assert recorder.snapshot().policy.ec_action == (action or "fail")
    first = expects(image("first", "a", "b", media=media))
    pair.engine.scheduler.add_request(first)
    pair.engine.step()
    pair.push("first", "a", "b")
    pair.lose("first", "a")
    pair.engine.run_off()
    found = check(pair, recorder, first, outcome, decided_by, told=bool(action), mode="mode load")
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_LOAD, c.ERROR_TYPE_EVICTED)
    assert found.items_recomputed == 1
    producer = pair.producer.connector._worker._control_client._penstock_name
    assert found.peer.address == producer.address
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.item) == (c.FAILURE_MODE_LOAD, "a")
    if outcome == RECOMPUTED:
        assert (pair.engine.loaded, pair.engine.encoded) == (["b"], ["a"])


@KINDS
@BY_POLICY
def test_a_push_that_does_not_come(
    kind: str,
    action: str,
    items: int | None,
    media: bool,
    outcome: int,
    decided_by: int,
    make_pair: MakePair,
    recorder: Recorder,
) -> None:
    """The connector's own patience (``push_wait_timeout_s``) ends the request in vLLM; a policy decides instead."""
    pair = make_pair(kind, push_wait_timeout_s=0.05)
    if action:
        act(action, items)
    first = expects(image("first", "a", media=media))
    pair.engine.scheduler.add_request(first)
    pair.engine.run_off()
    found = check(pair, recorder, first, outcome, decided_by, told=bool(action), mode="mode timeout")
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    (failure,) = recorder.take("transfer_failure", "first")
    assert (failure.mode, failure.item) == (c.FAILURE_MODE_TIMEOUT, "a")
    endings = [each.ending for each in recorder.take("deferral_end", "first")]
    assert endings == [c.DEFERRAL_ENDING_READY if outcome == RECOMPUTED else c.DEFERRAL_ENDING_ABORTED]


@KINDS
@pytest.mark.parametrize("on_timeout", ["recompute", "fail"])
def test_a_deadline_holds(
    kind: str, on_timeout: str, make_pair: MakePair, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push counts as not started until it has come; what comes after the deadline harms no request."""
    clock = ManualClock()
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic_ns=clock))
    runtime.policy.swap(policy(deferral=Deferral(max_start_wait=5.0, on_timeout=Action(on_timeout))), 1.0)
    pair = make_pair(kind)
    first = expects(image("first", "a"))
    pair.engine.scheduler.add_request(first)
    for _ in range(4):
        pair.engine.step()
    clock.advance(6)
    for _ in range(3):
        pair.engine.step()
    pair.push("first", "a")
    pair.engine.run_off()
    fails = on_timeout == "fail"
    found = check(
        pair,
        recorder,
        first,
        c.OUTCOME_FAILED if fails else RECOMPUTED,
        c.DECIDED_BY_DEADLINE,
        told=True,
        mode="mode timeout",
    )
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    (end,) = recorder.take("deferral_end", "first")
    assert end.ending == c.DEFERRAL_ENDING_TIMEOUT


@KINDS
def test_one_request_only(kind: str, make_pair: MakePair, recorder: Recorder) -> None:
    """Two requests need one item, each with a push of its own: the one whose push is lost encodes it, the other waits for its own."""
    act("recompute")
    pair = make_pair(kind)
    engine = pair.engine
    first, second = expects(image("first", "a")), expects(image("second", "a", "b", first=77))
    engine.scheduler.add_request(first)
    engine.step()
    pair.push("first", "a")
    pair.lose("first", "a")
    engine.scheduler.add_request(second)
    engine.step_until(lambda: "first" not in engine.scheduler.requests, "the first request is still there")
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert not recorder.take("load_outcome", "second")
    pair.push("second", "b")
    engine.run_off()
    assert engine.outputs["second"] == expected(second, OUTPUTS)
    assert not engine.errors
    assert not recorder.take("load_outcome", "second")


def test_a_router_that_tries_again(make_pair: MakePair, recorder: Recorder) -> None:
    """After a failure the same item can be pushed anew, for a request without media too: nothing is remembered against it."""
    act("fail")
    pair = make_pair()
    first, again = expects(image("first", "a", media=False)), expects(image("again", "a", media=False))
    pair.engine.scheduler.add_request(first)
    pair.engine.step()
    pair.push("first", "a")
    pair.lose("first", "a")
    pair.engine.run_off()
    assert pair.engine.errors.keys() == {"first"}
    pair.push("again", "a")
    pair.engine.scheduler.add_request(again)
    pair.engine.run_off()
    assert pair.engine.outputs["again"] == expected(again, OUTPUTS)
    assert len(recorder.take("load_outcome")) == 1


@KINDS
def test_a_later_chunk(kind: str, make_pair: MakePair, recorder: Recorder) -> None:
    """An item of a request that runs: what is computed stays, the item is encoded here."""
    act("recompute")
    pair = make_pair(kind, chunk=64, push_wait_timeout_s=0.05)
    first = expects(image("first", "a", "b"))
    pair.engine.scheduler.add_request(first)
    pair.push("first", "a")
    pair.engine.run_off()
    assert pair.engine.outputs["first"] == expected(first, OUTPUTS)
    assert not pair.engine.errors
    assert sum(each.items_recomputed for each in recorder.take("load_outcome", "first")) >= 1


def test_an_id_of_another_item(make_pair: MakePair, recorder: Recorder) -> None:
    """A transfer id that names another item already: vLLM refuses the request, a policy has it encode the item."""
    act("recompute")
    pair = make_pair()
    engine = pair.engine
    waiting, wrong = expects(image("waiting", "a")), image("wrong", "b", first=77)
    engine.scheduler.add_request(waiting)
    engine.step()
    wrong.ec_transfer_params = {"ec_items": [{"mm_hash": "b", "transfer_id": transfer_of("waiting", "a")}]}
    engine.scheduler.add_request(wrong)
    engine.step_until(lambda: "wrong" not in engine.scheduler.requests, "the request is still there")
    assert engine.outputs["wrong"] == expected(wrong, OUTPUTS)
    found = outcome_of(recorder, wrong)
    assert (found.outcome, found.mode) == (RECOMPUTED, c.FAILURE_MODE_SETUP)
    pair.push("waiting", "a")
    engine.run_off()
    assert engine.outputs["waiting"] == expected(waiting, OUTPUTS)


def test_a_pause_keeps_what_was_decided(make_pair: MakePair, recorder: Recorder) -> None:
    """A request that encodes its item here does so to its end; those that fail in the pause are vLLM's."""
    act("recompute")
    pair = make_pair(push_wait_timeout_s=0.05)
    engine = pair.engine
    first = expects(image("first", "a"))
    engine.scheduler.add_request(first)
    engine.step_until(lambda: recorder.take("load_outcome", "first"), "nothing is decided")
    runtime.pause("policy", paused=True)
    try:
        later = expects(image("later", "b", first=77))
        engine.scheduler.add_request(later)
        engine.run_off()
    finally:
        runtime.pause("policy", paused=False)
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert engine.errors == {"later": None}


@KINDS
def test_a_load_that_no_worker_makes(make_pair: MakePair, recorder: Recorder, kind: str) -> None:
    """As the V1 model runner in a step without tokens (docs/upstream.md): mode timeout, and the peer that had pushed."""
    act("recompute")
    pair = make_pair(kind)
    pair.engine.loads = False
    first = expects(image("first", "a"))
    scheduler = pair.engine.scheduler
    scheduler.add_request(first)
    pair.push("first", "a")
    pair.engine.step()
    load = scheduler.ec_connector._scheduler._transfers.get(transfer_of("first", "a"))
    pair.engine.step_until(lambda: load.state.name == "LOADING", "the load is not with the workers")
    load.deadline = 0.0  # in monotonic seconds: the wait is over
    pair.engine.step_until(lambda: not scheduler.requests, "the request is still there")
    assert pair.engine.outputs["first"] == expected(first, OUTPUTS)
    found = outcome_of(recorder, first)
    assert (found.outcome, found.mode) == (RECOMPUTED, c.FAILURE_MODE_TIMEOUT)
    (failure,) = recorder.take("transfer_failure", "first")
    assert "no worker loaded it" in failure.error_text
    assert failure.peer.address != "unknown"


@pytest.fixture
def allowed(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow faults in this process."""
    from penstock.instrumentation.core.settings import Settings

    del recorder
    monkeypatch.setattr(
        runtime.session, "settings", Settings(endpoint="unix:///nowhere/ingest.sock", allow_faults=True)
    )


@pytest.mark.usefixtures("allowed")
def test_a_drill(make_pair: MakePair, recorder: Recorder) -> None:
    """A rehearsed failure takes the same way as a real one, is marked, and leaves the consumer's pool as it was."""
    drill = Drill("d", c.CHANNEL_EC, c.FAILURE_MODE_LOAD, 1.0, 60_000_000_000)
    pair = make_pair()
    runtime.policy.swap(
        policy(ec=EcLoadFailure(Action.RECOMPUTE)),
        1.0,
        Orders(drills=(drill,), received_ns=time.monotonic_ns()),
    )
    first = expects(image("first", "a"))
    pair.engine.scheduler.add_request(first)
    pair.engine.step()
    pair.push("first", "a")
    pair.engine.run_off()
    assert pair.engine.outputs["first"] == expected(first, OUTPUTS)
    assert pair.engine.encoded == ["a"]
    rehearsed = {event.WhichOneof("body") for event in recorder.events if event.rehearsal}
    assert rehearsed == {"load_outcome", "transfer_failure"}
    assert not pair.engine.worker._worker._consumer_memory._residents.referenced()
