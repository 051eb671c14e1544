"""Fault drills of encoder outputs in vLLM's own scheduler."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.orders import SLOW, Drill, Orders
from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import Action, EcLoadFailure

from tests.support.ec.decisions import OUTPUTS, image
from tests.support.ec.fake_ec import ToyEcEngine, expected
from tests.support.engine.recorder import policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
PROBE, TRANSFER, LOAD = c.FAILURE_MODE_PROBE, c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_LOAD


def rehearse(mode: int, action: str = "recompute") -> None:
    """Put a policy and a drill that hits every attempt in force."""
    drill = Drill("d1", c.CHANNEL_EC, mode, 1.0, 60_000_000_000)
    ec = EcLoadFailure(Action(action)) if action else None
    runtime.policy.swap(policy(ec=ec), 1.0, Orders(drills=(drill,), received_ns=time.monotonic_ns()))


@pytest.fixture(autouse=True)
def allowed(recorder: Recorder) -> None:
    """Allow faults in this engine."""
    runtime.configure(Settings(endpoint="unix:///nowhere/ingest.sock", allow_faults=True))


@KINDS
def test_a_probe_that_fails(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """An item that the connector has is encoded here, in one step, with right tokens; the failure is marked."""
    scheduler = make_ec_scheduler(kind)
    scheduler.ec_connector.store |= {"a", "b"}
    rehearse(PROBE)
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    first = image("first", "a", "b")
    engine.run(first)
    assert engine.outputs["first"] == expected(first, OUTPUTS)
    assert (engine.loaded, engine.encoded) == ([], ["a", "b"])
    events = [event for event in recorder.events if event.WhichOneof("body") == "transfer_failure"]
    assert [(event.rehearsal, event.transfer_failure.mode) for event in events] == [(True, PROBE)] * 2
    assert [event.transfer_failure.error_text for event in events] == ["drill d1"] * 2
    assert not recorder.take("load_outcome")


def test_a_request_without_media(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """It cannot have what the drill takes away, and fails like any other; that is marked too."""
    scheduler = make_ec_scheduler()
    scheduler.ec_connector.store |= {"a"}
    rehearse(PROBE)
    engine = ToyEcEngine(scheduler, ahead=False)
    engine.run(image("first", "a", media=False))
    (event,) = [event for event in recorder.events if event.WhichOneof("body") == "load_outcome"]
    assert (event.rehearsal, event.load_outcome.outcome) == (True, c.OUTCOME_FAILED)
    assert event.load_outcome.mode == PROBE
    assert engine.errors.keys() == {"first"}


def test_what_is_not_guarded_is_not_hit(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Without a policy a request that lost its item could end the engine."""
    scheduler = make_ec_scheduler()
    scheduler.ec_connector.store |= {"a"}
    rehearse(PROBE, action="")
    engine = ToyEcEngine(scheduler, ahead=False)
    engine.run(image("first", "a"))
    assert engine.loaded == ["a"]
    assert not recorder.take("transfer_failure")


@pytest.mark.parametrize(
    ("connector", "mode", "peer", "why"),
    [
        ("ToyEcConnector", LOAD, "", ""),
        ("ToyEcConnector", PROBE, "", ""),
        ("ToyEcConnector", TRANSFER, "", "ToyEcConnector has no transfer .* use mode load or probe"),
        ("ToyEcConnector", SLOW, "", "loads its items inside a step"),
        ("ToyEcConnector", LOAD, "10.0.0.1:7000", "names no peers, .* 10.0.0.1:7000; leave the peer out"),
        ("ToySources", LOAD, "10.0.0.1:7000", ""),
        ("ToyLoader", LOAD, "10.0.0.1:7000", ""),
        ("ToySources", TRANSFER, "", "ToySources moves its items by itself, .* use mode load"),
        ("ToyLoader", PROBE, "", "use mode load"),
    ],
)
def test_what_a_connector_cannot_rehearse(
    connector: str, mode: int, peer: str, why: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The engine refuses it with a sentence that says why and what to use."""
    del recorder
    make_ec_scheduler(connector=connector)
    found = runtime.policy.unfit_drill(
        Drill("d1", c.CHANNEL_EC, mode, 1.0, 60_000_000_000, peer, 1_000 if mode == SLOW else 0)
    )
    if why:
        assert found.startswith("drill d1: ")
        assert re.search(why, found)
    else:
        assert not found


def test_drills_of_kv_are_no_concern(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """They go to the workers of the KV connector."""
    del recorder
    make_ec_scheduler()
    assert not runtime.policy.unfit_drill(Drill("d1", c.CHANNEL_KV, TRANSFER, 1.0, 1, "10.0.0.1:1"))


def test_a_scheduler_that_has_shut_down_refuses_nothing(
    make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The next engine of the process may have another connector, or none."""
    del recorder
    drill = Drill("d1", c.CHANNEL_EC, TRANSFER, 1.0, 60_000_000_000)
    first, second = make_ec_scheduler(), make_ec_scheduler()
    first.shutdown()
    assert runtime.policy.unfit_drill(drill), "the second scheduler's answer"
    second.shutdown()
    assert not runtime.policy.unfit_drill(drill)


def test_a_step_without_tokens_loses_no_drill(make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """VLLM's V1 model runner hands it to no worker's connector, so the step behind it has the drills as well, and no further one."""
    del recorder
    scheduler = make_ec_scheduler(connector="ToySources")
    rehearse(LOAD)
    waiting = image("first", "a")
    scheduler.add_request(waiting)
    idle = scheduler.schedule()
    scheduler.add_request(image("second", first=77))
    busy, later = scheduler.schedule(), scheduler.schedule()
    assert (idle.total_num_scheduled_tokens, busy.total_num_scheduled_tokens > 0) == (0, True)
    carried = [hasattr(each.ec_connector_metadata, "penstock_drills") for each in (idle, busy, later)]
    assert carried == [True, True, False]
