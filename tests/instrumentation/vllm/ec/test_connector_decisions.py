"""Decisions about the loads of connectors that have a default of their own, fail requests themselves, or only look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.protocol import EcFailure

from tests.support.ec.decisions import OUTPUTS, act, image, outcome_of
from tests.support.ec.fake_ec import TOY_PEER, ToyEcEngine, expected
from tests.support.engine.versions import from_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

RECOMPUTED, FAILED = c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


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


@from_version(0, 30, "lets no connector fail a request")
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
