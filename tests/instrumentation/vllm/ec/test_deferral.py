"""Requests that wait for an encoder output: the edges, the gauges, the deadlines, in real schedulers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec import pending_items, waits
from penstock.rules.policy import Action, Deferral, EcLoadFailure

from tests.support.ec.fake_ec import LEFT, RUNNING, TOY_PEER, ToyEcEngine, expected, image_request
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import request
from tests.support.engine.versions import from_version
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

OUTPUTS = 4
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
BOTH = pytest.mark.parametrize("connector", ["ToyEcConnector", "ToyLoader"])
READY, TIMEOUT, ABORTED = (
    c.DEFERRAL_ENDING_READY,
    c.DEFERRAL_ENDING_TIMEOUT,
    c.DEFERRAL_ENDING_ABORTED,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the deadlines a clock that only the test moves."""
    clock = ManualClock()
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


def image(request_id: str, *names: str, **arguments: Any) -> Any:
    """Return a request with an image of 40 embeddings at each 64th token from the 10th on, and some text."""
    items = {10 + 64 * index: (name, 40) for index, name in enumerate(names)}
    return image_request(
        request_id, items, **{"tokens": 64 * len(names) + 30, "max_tokens": OUTPUTS, **arguments}
    )


def limit(on_timeout: str = "recompute", action: str = "", **limits: float) -> None:
    """Put a policy with deadlines in force."""
    runtime.policy.swap(
        policy(
            deferral=Deferral(on_timeout=Action(on_timeout) if on_timeout else None, **limits),
            ec=EcLoadFailure(Action(action)) if action else None,
        ),
        1.0,
    )


@KINDS
@BOTH
def test_edges(kind: str, connector: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Polled for many steps, a wait is one start and one end; others go on meanwhile; the gauge says since when."""
    scheduler = make_ec_scheduler(kind, connector=connector)
    scheduler.ec_connector.coming |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    waiting, other = image("waiting", "a"), request("other", first=400, max_tokens=OUTPUTS)
    scheduler.add_request(waiting)
    scheduler.add_request(other)
    for step in range(12):
        if step == 6 and connector == "ToyLoader":
            scheduler.ec_connector.began["a"] = 4711
        engine.step()
    assert "other" not in scheduler.requests
    assert len(recorder.take("deferral_start", "waiting")) == 1
    assert not recorder.take("deferral_end")
    (gauge,) = recorder.snapshot().deferred
    assert (gauge.reason, gauge.count) == (c.DEFERRAL_REASON_ENCODER_CACHE, 1)
    scheduler.ec_connector.coming.clear()
    scheduler.ec_connector.store |= {"a"}
    engine.run()
    assert engine.outputs["waiting"] == expected(waiting, OUTPUTS)
    (end,) = recorder.take("deferral_end", "waiting")
    assert (end.reason, end.channel, end.ending) == (
        c.DEFERRAL_REASON_ENCODER_CACHE,
        c.CHANNEL_EC,
        READY,
    )
    if connector == "ToyLoader":
        assert (end.peer.address, end.transfer_start_time_unix_nano) == (TOY_PEER.address, 4711)
    assert not recorder.snapshot().deferred


@from_version(0, 30, "asks its connector about no request that runs")
def test_a_running_request_waits_too(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """An item of a later chunk that is not there defers a request that runs, and only what is not computed yet is asked for."""
    scheduler = make_ec_scheduler(chunk=64)
    engine = ToyEcEngine(scheduler, ahead=False)
    running = image("running", "a", "b")
    scheduler.add_request(running)
    engine.step()
    scheduler.ec_connector.coming |= {"a", "b"}  # a is computed
    engine.step()
    engine.step()
    assert running.status == RUNNING
    assert running.num_computed_tokens == 64
    assert len(recorder.take("deferral_start", "running")) == 1
    scheduler.ec_connector.coming -= {"b"}
    engine.run()
    assert engine.outputs["running"] == expected(running, OUTPUTS)
    assert scheduler.ec_connector.asked[0] == ("running", 0)
    assert ("running", 64) in scheduler.ec_connector.asked


@KINDS
def test_a_client_that_leaves(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that is aborted while it waits ends its deferral."""
    scheduler = make_ec_scheduler(kind)
    scheduler.ec_connector.coming |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    scheduler.add_request(image("leaving", "a"))
    engine.step()
    scheduler.finish_requests("leaving", LEFT)
    assert [end.ending for end in recorder.take("deferral_end")] == [ABORTED]
    assert not scheduler._penstock.ec._waits._deadlines.waiting()


@KINDS
@pytest.mark.parametrize(
    ("limits", "begun", "seconds", "over"),
    [
        ({"max_start_wait": 5.0}, False, 6, True),
        ({"max_start_wait": 5.0}, False, 4, False),
        ({"max_start_wait": 5.0}, True, 6, False),
        ({"max_transfer_wait": 5.0}, False, 6, False),
        ({"max_transfer_wait": 5.0}, True, 6, True),
        ({}, True, 10_000, False),
    ],
)
def test_two_clocks(
    kind: str,
    limits: dict[str, Any],
    begun: bool,
    seconds: int,
    over: bool,
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
    clock: ManualClock,
) -> None:
    """One bounds the wait for the start, the other counts from it; a policy that comes later applies, with nothing else to run."""
    scheduler = make_ec_scheduler(kind, connector="ToyLoader")
    connector = scheduler.ec_connector
    connector.coming |= {"a"}
    if begun:
        connector.began["a"] = 4711
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    waiting = image("waiting", "a")
    scheduler.add_request(waiting)
    engine.step()
    clock.advance(seconds)
    limit(**limits)
    engine.step()
    assert connector.given_up == (["a"] if over else [])
    assert [end.ending for end in recorder.take("deferral_end")] == ([TIMEOUT] if over else [])
    if over:
        engine.run()
        assert engine.outputs["waiting"] == expected(waiting, OUTPUTS)
        assert engine.encoded == ["a"]


@KINDS
@BOTH
@pytest.mark.parametrize(
    ("on_timeout", "action", "media", "outcome"),
    [
        ("recompute", "fail", True, c.OUTCOME_RECOMPUTED),
        ("fail", "recompute", True, c.OUTCOME_FAILED),
        ("", "fail", True, c.OUTCOME_FAILED),
        ("", "", True, c.OUTCOME_RECOMPUTED),
        ("recompute", "", False, c.OUTCOME_FAILED),
    ],
)
def test_what_becomes_of_it(
    kind: str,
    connector: str,
    on_timeout: str,
    action: str,
    media: bool,
    outcome: int,
    make_ec_scheduler: MakeScheduler,
    recorder: Recorder,
    clock: ManualClock,
) -> None:
    """A wait that is over is decided by ``onTimeout``: the items that are not there are encoded here, or the request fails."""
    scheduler = make_ec_scheduler(kind, connector=connector)
    scheduler.ec_connector.coming |= {"a"}
    scheduler.ec_connector.store |= {"b"}
    limit(on_timeout, action, max_start_wait=5)
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    waiting, patient = image("waiting", "b", "a", media=media), image("patient", "a", first=400)
    scheduler.add_request(waiting)
    engine.step()
    clock.advance(4)
    scheduler.add_request(patient)
    engine.step()
    clock.advance(2)
    for _ in range(4):
        engine.step()
    (found,) = recorder.take("load_outcome", "waiting")
    assert (found.outcome, found.decided_by, found.mode, found.items_recomputed) == (
        outcome,
        c.DECIDED_BY_DEADLINE,
        c.FAILURE_MODE_TIMEOUT,
        1,
    )
    assert not recorder.take("load_outcome", "patient")
    (failure,) = recorder.take("transfer_failure", "waiting")
    assert (failure.mode, failure.error_type, failure.item) == (
        c.FAILURE_MODE_TIMEOUT,
        c.ERROR_TYPE_TIMEOUT,
        "a",
    )
    (end,) = recorder.take("deferral_end", "waiting")
    assert end.ending == TIMEOUT
    if outcome == c.OUTCOME_FAILED:
        assert "the wait was over its deadline" in engine.errors["waiting"]
        assert "patient" in scheduler.requests
        scheduler.ec_connector.coming.clear()
        scheduler.ec_connector.store |= {"a"}
    engine.run()
    assert engine.outputs["patient"] == expected(patient, OUTPUTS)
    if outcome == c.OUTCOME_RECOMPUTED:
        assert engine.outputs["waiting"] == expected(waiting, OUTPUTS)
        assert (engine.loaded, engine.encoded) == (["b"], ["a"])
    assert not scheduler._penstock.ec._waits._deadlines.waiting()


def test_no_starvation(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Under a steady stream of requests that are ready, one that waited is scheduled as soon as its item is there."""
    scheduler = make_ec_scheduler()
    scheduler.ec_connector.coming |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=False)
    waiting = image("waiting", "a")
    scheduler.add_request(waiting)
    for index in range(20):
        scheduler.add_request(request(f"stream{index}", first=300 + index, max_tokens=2))
        if index == 10:
            scheduler.ec_connector.coming.clear()
        engine.step()
        if index == 11:
            assert waiting.num_computed_tokens
    engine.run()
    assert engine.outputs["waiting"] == expected(waiting, OUTPUTS)


def test_bad_items_are_forgotten() -> None:
    """An item is bad for a while only, and of very many the oldest are forgotten first."""
    clock = ManualClock()
    bad = pending_items.BadItems(clock)
    cause = object()
    bad.remember("a", cause)  # type: ignore[arg-type]
    assert ("a" in bad, bad.cause("a")) == (True, cause)
    clock.advance(pending_items.REMEMBERED_NS / 1e9 + 1)
    assert "a" not in bad
    for index in range(pending_items.CAPACITY + 1):
        bad.remember(str(index), cause)  # type: ignore[arg-type]
    assert "0" not in bad
    assert "1" in bad
