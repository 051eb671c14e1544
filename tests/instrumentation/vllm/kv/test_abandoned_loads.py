"""Deadlines of loads whose connector takes no orders: the request ends, and its blocks stay until the connector reports the load's end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv import abandoned_loads, decider
from penstock.instrumentation.vllm.kv.abandoned_loads import AbandonedLoads, loading_connector, takes_orders
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.rules.policy import Action, Deferral, Policy, PolicyBody

from tests.support.engine.parked import stop_reasons
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, PEER, REMOTE, given_blocks, request
from tests.support.engine.versions import TELLS_FAILED_RECEIVES
from tests.support.kv.fake_mover import mover, multi, run_step, worker
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

STORED = {**REMOTE, "stored": 2 * BLOCK, "waits": True}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_buffer_device": "cpu"}
DEADLINE = Deferral(max_transfer_wait=5, on_timeout=Action.FAIL)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Give the deadlines a clock that only the test moves."""
    clock = ManualClock()
    monkeypatch.setattr(decider, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


class Engine:
    """A real scheduler and the scripted worker of its connector."""

    def __init__(self, scheduler: Any, connector: Any = None) -> None:
        self.scheduler = scheduler
        connector = connector or worker(scheduler.vllm_config)
        self.worker = connector
        children = getattr(connector, "_connectors", None)
        self.script = (children[0] if children else connector).script
        self.pool = scheduler.kv_cache_manager.block_pool

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return int(self.pool.get_num_free_blocks())

    def step(self) -> Any:
        """Run a step."""
        return run_step(self.scheduler, [self.worker])

    def load(self, request_id: str, **params: Any) -> Any:
        """Let a request wait for its load, which the worker has begun."""
        waiting = request(request_id, params=STORED | params)
        self.scheduler.add_request(waiting)
        self.step()
        assert waiting.status.name == "WAITING_FOR_REMOTE_KVS"
        return waiting

    def blocks(self, request_id: str) -> set[int]:
        """Return the blocks of a request."""
        groups = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return {block for group in groups for block in group}

    def use_all_blocks(self) -> set[int]:
        """Let requests that load nothing have every block that is free, and end; return the blocks that they had."""
        used = given_blocks(self.scheduler)
        for number in range(self.free // 3):
            self.scheduler.add_request(request(f"other-{number}", first=100 + number, max_tokens=1))
        for _ in range(50):
            self.step()
        assert not any(each.startswith("other") for each in self.scheduler.requests)
        assert len(used) > self.free // 2
        return used


@pytest.fixture(
    params=["sync", "async", "sync hybrid", "async hybrid", "sync multi", "async multi"],
)
def engine(request: pytest.FixtureRequest, make_scheduler: MakeScheduler) -> Engine:
    """Each scheduler, with one and with two groups of blocks, and with the connector as a child."""
    kind, _, shape = request.param.partition(" ")
    transfer = multi(mover(), mover("OtherMover")) if shape == "multi" else mover()
    return Engine(make_scheduler(kind, hybrid=shape == "hybrid", **transfer))


def held(scheduler: Any) -> list[tuple[int, str, int]]:
    """Return what a scheduler says that it holds: holder, peer, requests."""
    gauges = scheduler._penstock.observer._held.gauges()
    return [(each.holder, each.peer.address if each.peer else "", each.requests) for each in gauges]


def test_the_request_fails_and_its_blocks_stay(
    engine: Engine, recorder: Recorder, clock: ManualClock
) -> None:
    """Client, events, gauge; nobody gets the blocks before the connector has reported."""
    runtime.policy.swap(policy("recompute", deferral=DEADLINE), 1.0)
    before = engine.free
    engine.load("r")
    pinned = engine.blocks("r")
    clock.advance(6)
    told = stop_reasons(engine.step())
    assert PEER in told["r"]
    assert "over its deadline" in told["r"]
    assert "maxTransferWait" in told["r"]
    (outcome,) = recorder.take("load_outcome", "r")
    assert (outcome.outcome, outcome.decided_by, outcome.mode) == (
        c.OUTCOME_FAILED,
        c.DECIDED_BY_DEADLINE,
        c.FAILURE_MODE_TIMEOUT,
    )
    assert outcome.connector == "ToyMover"
    (end,) = recorder.take("deferral_end", "r")
    assert end.ending == c.DEFERRAL_ENDING_TIMEOUT
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.mode, failure.peer.address, failure.connector) == (
        c.FAILURE_MODE_TIMEOUT,
        PEER,
        "ToyMover",
    )
    (pin,) = recorder.take("blocks_pinned", "r")
    assert (pin.peer.address, pin.blocks > 0, pin.released) == (PEER, True, False)
    assert held(engine.scheduler) == [(c.BLOCK_HOLDER_PINNED, PEER, 1)]
    assert engine.blocks("r") == pinned
    assert engine.use_all_blocks().isdisjoint(pinned)
    assert engine.blocks("r") == pinned

    engine.script.received = {"r"}
    engine.step()
    assert engine.free == before
    assert "r" not in engine.scheduler.requests
    assert held(engine.scheduler) == []
    (_, released) = recorder.take("blocks_pinned", "r")
    assert (released.released, released.blocks) == (True, pin.blocks)
    assert len(recorder.take("load_outcome")) == len(recorder.take("transfer_failure")) == 1
    transfer = next(each for each in recorder.transfers if each["request_id"] == "r")
    assert (transfer["peer"], transfer["result"]) == (PEER, c.TRANSFER_RESULT_OK)


_TELLS_REQUESTS = pytest.mark.skipif(not TELLS_FAILED_RECEIVES, reason="an older vLLM tells blocks only")


@pytest.mark.parametrize("late", ["blocks", pytest.param("request", marks=_TELLS_REQUESTS)])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_late_failure_changes_nothing(
    late: str, kind: str, make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """The load fails after it was given up: its transfer is an error, and there is no second failure or outcome."""
    engine = Engine(make_scheduler(kind, **mover()))
    runtime.policy.swap(policy("recompute", deferral=DEADLINE), 1.0)
    before = engine.free
    engine.load("r")
    clock.advance(6)
    assert set(stop_reasons(engine.step())) == {"r"}
    if late == "blocks":
        engine.script.broken = set(list(engine.blocks("r"))[:2])
    else:
        engine.script.failed = {"r"}
    engine.script.received = {"r"}
    engine.step()
    assert engine.free == before
    assert len(recorder.take("load_outcome")) == len(recorder.take("transfer_failure")) == 1
    (transfer,) = (each for each in recorder.transfers if each["request_id"] == "r")
    assert (transfer["peer"], transfer["result"]) == (PEER, c.TRANSFER_RESULT_ERROR)


@pytest.mark.parametrize("order", ["send, load", "load, send", "both", "load"])
def test_a_connector_that_reports_a_send_of_every_request(
    order: str, make_scheduler: MakeScheduler, clock: ManualClock
) -> None:
    """As LMCache does: neither are the blocks free with the send, nor does a report too many end the engine."""
    engine = Engine(make_scheduler(**mover()))
    runtime.policy.swap(policy("recompute", deferral=DEADLINE), 1.0)
    before = engine.free
    engine.load("r", keeps=True)
    pinned = engine.blocks("r")
    clock.advance(6)
    assert set(stop_reasons(engine.step())) == {"r"}
    for report in ["load, send"] if order == "both" else order.split(", "):
        assert engine.blocks("r") == (pinned if engine.free < before else set())
        if "send" in report:
            engine.script.sent = {"r"}
        if "load" in report:
            engine.script.received = {"r"}
        engine.step()
        assert (engine.free == before) is ("load" in report or order == "load, send")
    assert "r" not in engine.scheduler.requests
    abandoned = engine.scheduler._penstock.loads.abandoned
    assert abandoned.any is (order == "load")
    # Nothing of it is left for the next load of that name.
    engine.load("r")
    engine.script.received = {"r"}
    serve_with(engine, "r")
    assert engine.free == before


def serve_with(engine: Engine, request_id: str) -> None:
    """Run steps until a request has left, and free what is cached of it."""
    for _ in range(10):
        if request_id not in engine.scheduler.requests:
            return
        engine.step()
    raise AssertionError(f"{request_id} is still there")


def test_a_load_that_ends_with_its_deadline_is_served(
    engine: Engine, recorder: Recorder, clock: ManualClock
) -> None:
    """What has come in the step that would give it up is not thrown away."""
    runtime.policy.swap(policy("recompute", deferral=DEADLINE), 1.0)
    engine.load("r")
    clock.advance(6)
    engine.script.received = {"r"}
    assert not stop_reasons(engine.step())
    serve_with(engine, "r")
    assert not recorder.take("load_outcome")
    assert not recorder.take("blocks_pinned")
    assert not engine.scheduler._penstock.loads.abandoned.any


@pytest.mark.parametrize("observed", [False, True])
def test_without_a_deadline_nothing_acts(
    engine: Engine, recorder: Recorder, clock: ManualClock, observed: bool
) -> None:
    """No policy, or one in mode observe: the request waits on, and a send ends its blocks as vLLM has it."""
    body = PolicyBody(deferral=DEADLINE) if observed else None
    runtime.policy.swap(Policy(hash="h", observed=body), 1.0)
    engine.load("r")
    clock.advance(60_000)
    assert not stop_reasons(engine.step())
    assert not engine.scheduler._penstock.loads.abandoned.any
    assert held(engine.scheduler) == [(c.BLOCK_HOLDER_LOAD, PEER, 1)]
    engine.script.received = {"r"}
    serve_with(engine, "r")
    assert not recorder.take("transfer_failure")


def test_a_request_that_its_client_leaves_is_not_ours(
    make_scheduler: MakeScheduler, recorder: Recorder, clock: ManualClock
) -> None:
    """It ends before its deadline: vLLM's own way, holder ``aborted``."""
    from vllm.v1.request import RequestStatus

    engine = Engine(make_scheduler(**mover()))
    runtime.policy.swap(policy("recompute", deferral=DEADLINE), 1.0)
    engine.load("r")
    engine.scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
    clock.advance(6)
    assert not stop_reasons(engine.step())
    assert held(engine.scheduler) == [(c.BLOCK_HOLDER_ABORTED, PEER, 1)]
    assert not recorder.take("blocks_pinned")
    engine.script.received = {"r"}
    engine.step()
    assert "r" not in engine.scheduler.requests


@pytest.mark.parametrize(
    ("chosen", "takes"), [({"r": 0}, True), ({"r": 1}, False), ({}, False)], ids=["NIXL", "other", "none"]
)
def test_which_child_loads(chosen: dict[str, int], takes: bool, make_scheduler: MakeScheduler) -> None:
    """Workers obey where NIXL has the load; of a MultiConnector that is by request."""
    scheduler = make_scheduler(**multi(NIXL, mover()))
    scheduler.connector._requests_to_connector.update(chosen)
    assert takes_orders(loading_connector(scheduler.connector, "r")) is takes
    assert takes_orders(make_scheduler().connector)


def test_what_may_still_be_sent_is_bounded(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    """A connector that never reports the sends that it announces does not fill the memory."""
    monkeypatch.setattr(abandoned_loads, "SENDS_MAX", 2)
    loads = AbandonedLoads()
    for name in "abc":
        loads._open[name] = abandoned_loads._Abandoned(Peer(), 1, 1, sends=True)
        loads.forget(name)
    output = SimpleNamespace(finished_sending={"a", "b", "c", "d"})
    loads.hide_sends(output)
    assert output.finished_sending == {"a", "d"}
    assert not loads.any
    assert not loads._late_sends


class TestLookUps:
    """A connector that puts its answer off holds no blocks; ``maxStartWait`` ends that wait as well."""

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("on_timeout", [Action.FAIL, Action.RECOMPUTE])
    def test_a_look_up_over_its_deadline(
        self,
        kind: str,
        on_timeout: Action,
        make_scheduler: MakeScheduler,
        recorder: Recorder,
        clock: ManualClock,
    ) -> None:
        """The request fails, its wait ended by timeout, and no load is made up."""
        engine = Engine(make_scheduler(kind, **mover("LateMover")))
        runtime.policy.swap(policy("recompute", deferral=Deferral(3, on_timeout=on_timeout)), 1.0)
        before = engine.free
        engine.scheduler.add_request(request("r", params=STORED))
        engine.step()
        clock.advance(2)
        assert not stop_reasons(engine.step())
        clock.advance(2)
        told = stop_reasons(engine.step())
        assert "mode timeout, deferral.maxStartWait 3 s, peer" in told["r"]
        (outcome,) = recorder.take("load_outcome", "r")
        assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)
        assert ("a look-up cannot be taken back" in outcome.reason) is (on_timeout is Action.RECOMPUTE)
        (end,) = recorder.take("deferral_end", "r")
        assert (end.reason, end.ending) == (
            c.DEFERRAL_REASON_KV_LOOKUP,
            c.DEFERRAL_ENDING_TIMEOUT,
        )
        assert not recorder.take("blocks_pinned")
        assert "r" not in engine.scheduler.requests
        assert engine.free == before

    def test_its_load_has_a_clock_of_its_own(
        self, make_scheduler: MakeScheduler, clock: ManualClock, recorder: Recorder
    ) -> None:
        """What the look-up took is not the load's; a request that is not asked about is not over."""
        engine = Engine(make_scheduler(**mover("LateMover")))
        runtime.policy.swap(policy("recompute", deferral=Deferral(3, on_timeout=Action.FAIL)), 1.0)
        engine.scheduler.add_request(request("r", params=STORED))
        engine.step()
        clock.advance(2)
        engine.scheduler.connector.late = False
        engine.step()
        assert engine.scheduler.requests["r"].status.name == "WAITING_FOR_REMOTE_KVS"
        clock.advance(2)
        assert not stop_reasons(engine.step())
        engine.script.received = {"r"}
        serve_with(engine, "r")
        assert not recorder.take("load_outcome")
