"""Deadlines of remote loads in a real scheduler: who is named to the workers, and what becomes of the request."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import Drill, Orders
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv import decider
from penstock.instrumentation.vllm.messages.step_metadata import StepMetadata
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport
from penstock.rules.policy import (
    NO_POLICY,
    Action,
    Deferral,
    Policy,
    PolicyBody,
    Telemetry,
)

from tests.support.engine.parked import fail_loads, finish_loads, park, serve, stop_reasons
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import step
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the deadlines a clock that only the test moves."""
    clock = ManualClock()
    monkeypatch.setattr(decider, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


def cancelled(scheduler: Any) -> frozenset[str]:
    """Return the requests that a step with nothing to run names to the workers."""
    output = scheduler.schedule()
    assert not output.num_scheduled_tokens
    return frozenset(getattr(output.kv_connector_metadata, "penstock_cancel", ()))


def began(scheduler: Any, request_id: str) -> None:
    """Let a step report that the transfer of a request has begun."""
    step(scheduler, kv_connector_worker_meta=WorkerReport(began=((request_id, 4711),)))


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("deferral", "has_begun", "seconds", "over"),
    [
        (Deferral(max_start_wait=5), False, 6, True),
        (Deferral(max_start_wait=5), False, 4, False),
        (Deferral(max_start_wait=5), True, 6, False),
        (Deferral(max_transfer_wait=5), False, 6, False),
        (Deferral(max_transfer_wait=5), True, 6, True),
        (Deferral(max_start_wait=1, max_transfer_wait=9), True, 6, False),
        (None, True, 10_000, False),
    ],
)
def test_the_requests_past_their_deadline(
    kind: str,
    deferral: Deferral | None,
    has_begun: bool,
    seconds: int,
    over: bool,
    make_scheduler: MakeScheduler,
    clock: ManualClock,
) -> None:
    """Two waits, two clocks; a policy that comes later applies to a request that waits, with nothing else to run."""
    scheduler = make_scheduler(kind)
    park(scheduler, "r")
    if has_begun:
        began(scheduler, "r")
    clock.advance(seconds)
    runtime.policy.swap(policy(deferral=deferral), 1.0)
    assert cancelled(scheduler) == (frozenset({"r"}) if over else frozenset())


@pytest.mark.parametrize(
    ("on_timeout", "action", "outcome"),
    [
        (Action.RECOMPUTE, "fail", c.OUTCOME_RECOMPUTED),
        (Action.FAIL, "recompute", c.OUTCOME_FAILED),
        (None, "recompute", c.OUTCOME_RECOMPUTED),
        (None, "", c.OUTCOME_FAILED),
    ],
)
def test_what_becomes_of_it(
    on_timeout: Action | None,
    action: str,
    outcome: int,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    clock: ManualClock,
) -> None:
    """The worker's failure is decided by ``onTimeout``; the blocks stay until then, and the wait ended by its deadline."""
    scheduler = make_scheduler()
    deferral = Deferral(max_start_wait=5, on_timeout=on_timeout)
    runtime.policy.swap(policy(action, deferral=deferral), 1.0)
    parked = park(scheduler, "r")
    clock.advance(6)
    assert cancelled(scheduler) == cancelled(scheduler) == {"r"}  # until it has ended
    assert scheduler.kv_cache_manager.get_block_ids("r") != ([],)
    told = stop_reasons(fail_loads(scheduler, parked, mode=c.FAILURE_MODE_TIMEOUT))
    serve(scheduler, parked)
    (found,) = recorder.take("load_outcome")
    assert (found.outcome, found.decided_by, found.mode) == (
        outcome,
        c.DECIDED_BY_DEADLINE,
        c.FAILURE_MODE_TIMEOUT,
    )
    assert "over its deadline" in found.reason
    assert ("r" in told) is (outcome == c.OUTCOME_FAILED)
    (end,) = recorder.take("deferral_end")
    assert end.ending == c.DEFERRAL_ENDING_TIMEOUT
    assert cancelled(scheduler) == frozenset()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_blocks_in_flight_stay(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """A load that cannot be taken back: its request fails at once, and its blocks are freed when the transfer has ended."""
    scheduler = make_scheduler(kind)
    deferral = Deferral(max_transfer_wait=5, on_timeout=Action.RECOMPUTE)
    runtime.policy.swap(policy("recompute", deferral=deferral), 1.0)
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    parked = park(scheduler, "r")
    began(scheduler, "r")
    clock.advance(6)
    assert cancelled(scheduler) == {"r"}
    told = stop_reasons(step(scheduler, kv_connector_worker_meta=WorkerReport(pinned=("r",))))
    assert "over its deadline" in told["r"]
    (found,) = recorder.take("load_outcome")
    assert (found.outcome, found.decided_by, found.mode) == (
        c.OUTCOME_FAILED,
        c.DECIDED_BY_DEADLINE,
        c.FAILURE_MODE_TIMEOUT,
    )
    assert "a transfer is in flight and its blocks are pinned" in found.reason
    assert pool.get_num_free_blocks() == free - 3
    finish_loads(scheduler, parked)
    assert pool.get_num_free_blocks() == free
    assert "r" not in scheduler.requests


def test_only_requests_that_wait_for_too_long(make_scheduler: MakeScheduler, clock: ManualClock) -> None:
    """One request is over, another not yet; one whose load ends well after all is no longer named."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy(deferral=Deferral(max_start_wait=5)), 1.0)
    early = park(scheduler, "early", first=300)
    clock.advance(3)
    park(scheduler, "late", first=301)
    clock.advance(3)
    assert cancelled(scheduler) == {"early"}
    finish_loads(scheduler, early)
    serve(scheduler, early)
    assert cancelled(scheduler) == frozenset()


def test_drills_travel_once() -> None:
    """The workers get drills and their end in the step after a change; a MultiConnector's children too."""
    orders = StepMetadata()
    orders.on_policy_change(NO_POLICY, Orders())

    def attached() -> Any:
        metadata = SimpleNamespace(metadata=(SimpleNamespace(),))
        orders.attach(metadata)
        assert vars(metadata.metadata[0]) == {
            key: value for key, value in vars(metadata).items() if key != "metadata"
        }
        return getattr(metadata, "penstock_drills", None)

    assert attached() is None
    drill = Drill("d", c.CHANNEL_KV, c.FAILURE_MODE_SETUP, 1.0, 1 << 62)
    orders.on_policy_change(NO_POLICY, Orders(drills=(drill,), received_ns=0))
    (sent,) = attached()
    assert (sent.id, sent.valid_for_ns < drill.valid_for_ns) == ("d", True)
    assert attached() is None
    orders.on_policy_change(NO_POLICY, Orders())
    assert attached() == ()
    assert attached() is None


def test_what_workers_do_of_a_policy_travels_once() -> None:
    """A changed telemetry section goes with the next step, and so does its end; another change of the policy does not."""
    orders = StepMetadata()

    def attached() -> Any:
        metadata = SimpleNamespace()
        orders.attach(metadata)
        return getattr(metadata, "penstock_telemetry", None)

    orders.on_policy_change(NO_POLICY, Orders())
    assert attached() is None
    limited = Policy(hash="a", telemetry=Telemetry(failure_log_interval=5.0))
    orders.on_policy_change(limited, Orders())
    assert attached() == Telemetry(failure_log_interval=5.0)
    assert attached() is None
    orders.on_policy_change(replace(limited, hash="b", deferral=Deferral(1.0)), Orders())
    assert attached() is None
    orders.on_policy_change(NO_POLICY, Orders())
    assert attached() == Telemetry()


@pytest.mark.parametrize(
    ("observed", "enforced", "told"),
    [
        (Deferral(max_start_wait=0.000001), None, True),
        (Deferral(max_start_wait=3_600), None, False),
        (None, None, False),
        (Deferral(max_start_wait=0.000001), Deferral(max_start_wait=0.000001), False),
    ],
    ids=["over", "not over", "no deferral", "enforced anyway"],
)
def test_an_observed_deadline_is_reported_and_ends_nothing(
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    observed: Deferral | None,
    enforced: Deferral | None,
    told: bool,
) -> None:
    """A policy in mode observe names the waits that it would have given up; the load goes on and is served."""
    scheduler = make_scheduler("sync")
    waiting = park(scheduler, "r1")
    runtime.policy.swap(Policy(hash="h", deferral=enforced, observed=PolicyBody(deferral=observed)), 1.0)
    if enforced is None:
        assert cancelled(scheduler) == frozenset()
    finish_loads(scheduler, waiting)
    serve(scheduler, waiting)
    (end,) = recorder.take("deferral_end", "r1")
    assert end.ending == c.DEFERRAL_ENDING_READY
    assert end.observed_reason.startswith("deferral.maxStartWait: it took") is told
    assert bool(end.observed_reason) is told
