"""Recomputes that are decided while other ranks still load: reported once, when it is sure what becomes of the request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv import decider
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure, WorkerReport
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.rules.policy import Action, Deferral

from tests.support.engine.parked import park, serve, stop_reasons
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, preempt, request, step
from tests.support.kv.fake_mover import mover, run_step, worker
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


def fail_one_rank(
    scheduler: Any, request_id: str, *, explained: bool = True, rehearsal: bool = False
) -> None:
    """Let a step report that one rank could not load, and no more of that request; *explained*: also why."""
    lost = {block for group in scheduler.kv_cache_manager.get_block_ids(request_id) for block in group}
    failure = LoadFailure(
        request_id, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER, Peer(), rehearsal=rehearsal
    )
    report = WorkerReport(failures=(failure,) if explained else ())
    step(scheduler, invalid_block_ids=lost, kv_connector_worker_meta=report)


def abort(scheduler: Any, request_id: str) -> None:
    """Let the client leave."""
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize("own", ["fail", "recompute"])
@pytest.mark.parametrize("action", ["", "recompute", "auto"])
def test_a_rank_fails_and_another_does_not_end(
    own: str,
    action: str,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load that was to be recomputed fails, with one outcome, if a deadline comes before all ranks have ended it."""
    clock = ManualClock()
    monkeypatch.setattr(decider, "time", SimpleNamespace(monotonic_ns=clock))
    scheduler = make_scheduler(own=own)
    deferral = Deferral(max_transfer_wait=5, on_timeout=Action.FAIL)
    runtime.policy.swap(policy(action, deferral=deferral), 1.0)
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    parked = park(scheduler, "r")
    step(scheduler, kv_connector_worker_meta=WorkerReport(began=(("r", 4711),)))
    lost = {block for group in scheduler.kv_cache_manager.get_block_ids("r") for block in group}
    told = stop_reasons(step(scheduler, invalid_block_ids=lost))
    recomputes = action or own == "recompute"
    assert told == ({} if recomputes else {"r": None})
    assert len(recorder.take("load_outcome")) == (0 if recomputes else 1)
    clock.advance(6)
    if recomputes:
        assert set(scheduler.schedule().kv_connector_metadata.penstock_cancel) == {"r"}
        told = stop_reasons(step(scheduler, kv_connector_worker_meta=WorkerReport(pinned=("r",))))
        assert "a transfer is in flight and its blocks are pinned" in told["r"]
    (found,) = recorder.take("load_outcome")
    assert (found.outcome, found.mode) == (c.OUTCOME_FAILED, c.FAILURE_MODE_LOAD)
    assert found.decided_by == (c.DECIDED_BY_DEADLINE if recomputes else c.DECIDED_BY_VLLM)
    assert (found.tokens_kept, found.tokens_recomputed) == (0, parked.num_prompt_tokens)
    assert pool.get_num_free_blocks() == free - 3
    step(scheduler, finished_recving={"r"}, failed_recving={"r"})
    assert pool.get_num_free_blocks() == free
    assert len(recorder.take("load_outcome")) == 1


@pytest.mark.parametrize("rehearsal", [False, True])
@pytest.mark.parametrize(
    ("explained", "mode"), [(True, c.FAILURE_MODE_TRANSFER), (False, c.FAILURE_MODE_LOAD)]
)
def test_a_rank_fails_and_the_client_leaves(
    explained: bool, mode: int, rehearsal: bool, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A request that leaves before all ranks have ended its load is aborted, whatever was to be done about it."""
    scheduler = make_scheduler()
    runtime.policy.swap(policy("recompute"), 1.0)
    parked = park(scheduler, "r")
    fail_one_rank(scheduler, "r", explained=explained, rehearsal=rehearsal)
    abort(scheduler, "r")
    (event,) = (each for each in recorder.events if each.WhichOneof("body") == "load_outcome")
    assert (event.load_outcome.outcome, event.load_outcome.mode) == (c.OUTCOME_ABORTED, mode)
    assert event.rehearsal == (explained and rehearsal)
    step(scheduler, finished_recving={"r"}, failed_recving={"r"})
    assert parked.request_id not in scheduler.requests
    assert len(recorder.take("load_outcome")) == 1


def test_the_client_leaves_in_a_later_load(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Tokens that a request had before it was preempted do not say that its present load is recomputed."""
    scheduler = make_scheduler(own="recompute", **mover())
    loading = request("r", tokens=2 * BLOCK + 1)
    scheduler.add_request(loading)
    while not loading.num_output_tokens:
        step(scheduler)
    preempt(scheduler)
    assert scheduler.kv_cache_manager.reset_prefix_cache()
    loading.kv_transfer_params = {"stored": 2 * BLOCK, "waits": True}
    step(scheduler)
    assert loading.status.name == "WAITING_FOR_REMOTE_KVS"
    fail_one_rank(scheduler, "r")
    abort(scheduler, "r")
    (found,) = recorder.take("load_outcome")
    assert found.outcome == c.OUTCOME_ABORTED


def test_the_load_ends_during_a_pause(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that has been recomputed by vLLM meanwhile is reported when it finishes."""
    scheduler = make_scheduler(own="recompute")
    parked = park(scheduler, "r")
    fail_one_rank(scheduler, "r")
    runtime.pause("test", paused=True)
    try:
        step(scheduler, finished_recving={"r"}, failed_recving={"r"})
    finally:
        runtime.pause("test", paused=False)
    assert not recorder.take("load_outcome")
    serve(scheduler, parked)
    (found,) = recorder.take("load_outcome")
    assert (found.outcome, found.mode) == (c.OUTCOME_RECOMPUTED, c.FAILURE_MODE_TRANSFER)


def test_the_next_load_begins_after_a_pause(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What was decided about a load that ended during a pause is reported under its own number when the next one begins."""
    scheduler = make_scheduler(own="recompute", **mover())
    connector = worker(scheduler.vllm_config)
    scheduler.add_request(request("r", params={"stored": 2 * BLOCK, "waits": True}))
    run_step(scheduler, [connector])
    connector.script.broken = {scheduler.kv_cache_manager.get_block_ids("r")[0][0]}
    run_step(scheduler, [connector])
    assert not recorder.take("load_outcome")
    runtime.pause("test", paused=True)
    try:
        connector.script.received = {"r"}
        run_step(scheduler, [connector])
    finally:
        runtime.pause("test", paused=False)
    run_step(scheduler, [connector])
    assert scheduler.requests["r"].status.name == "WAITING_FOR_REMOTE_KVS"
    assert [(found.outcome, found.attempt) for found in recorder.take("load_outcome")] == [
        (c.OUTCOME_RECOMPUTED, 1)
    ]
    connector.script.received = {"r"}
    for _ in range(5):
        run_step(scheduler, [connector])
    assert "r" not in scheduler.requests
    assert len(recorder.take("load_outcome")) == 1
