"""Loads that vLLM starts a step after their requests got blocks (``Scheduler.deferred_loads``): recorded once, from when the wait began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime

from tests.support.ec.fake_ec import LEFT
from tests.support.engine.fake_worker import ToyEngine, expected
from tests.support.engine.parked import fail_loads, finish_loads, remote, serve
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, request, step
from tests.support.engine.versions import from_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

pytestmark = from_version(0, 33, "starts each load in the step that allocates its blocks")

TOY = {"kv_connector": "ToyConnector", "kv_connector_module_path": "tests.support.kv.fake_connector"}
STORED = 4 * BLOCK
OUTPUTS = 6


def delaying(scheduler: Any) -> Any:
    """Let *scheduler* do what vLLM's does with a host pool of HiSparse, which needs CUDA."""
    scheduler.defer_block_free = scheduler.defer_async_loads = True
    return scheduler


def park_late(scheduler: Any) -> tuple[Any, Any, Any]:
    """Return a request whose load waits for a step under way, that step, and the step that got its blocks."""
    scheduler.add_request(request("local", first=300, max_tokens=20))
    first = scheduler.schedule()
    late = request("late", params=remote(request_id="their-late"), first=301)
    scheduler.add_request(late)
    second = scheduler.schedule()
    assert list(scheduler.deferred_loads) == ["late"]
    return late, first, second


def update(scheduler: Any, scheduled: Any) -> None:
    """Hand in the result of a step: a token for each of its requests."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(scheduled.num_scheduled_tokens)
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: number for number, each in enumerate(ids)},
        sampled_token_ids=[[7]] * len(ids),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    scheduler.update_from_output(scheduled, output)


def test_is_no_load_of_the_step(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Neither the step that allocates nor the one behind the start waits for it; it is one wait and one attempt."""
    scheduler = delaying(make_scheduler("async"))
    late, *steps = park_late(scheduler)
    loads = scheduler._penstock.loads
    record = scheduler._penstock.observer.record(late.request_id)
    assert (record.attempt, record.external_tokens) == (1, late.num_tokens)
    assert any(loads.deadlines.waiting)
    for scheduled in steps:
        update(scheduler, scheduled)
    assert not scheduler.deferred_loads
    scheduler.schedule()
    assert not loads.unconfirmed.steps
    assert (record.attempt, record.external_tokens) == (1, late.num_tokens)
    assert len(recorder.take("deferral_start", late.request_id)) == 1


@pytest.mark.parametrize("action", ["recompute", "fail"])
def test_failure_is_decided_once(action: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Its failure has one outcome, of the first attempt, with all that it was to bring."""
    scheduler = delaying(make_scheduler("async"))
    runtime.policy.swap(policy(action), 1.0)
    late, *steps = park_late(scheduler)
    for scheduled in steps:
        update(scheduler, scheduled)
    fail_loads(scheduler, late)
    serve(scheduler, late)
    (outcome,) = recorder.take("load_outcome", "late")
    assert (outcome.attempt, outcome.decided_by) == (1, c.DECIDED_BY_POLICY)
    assert outcome.outcome == (c.OUTCOME_RECOMPUTED if action == "recompute" else c.OUTCOME_FAILED)
    assert (outcome.tokens_kept, outcome.tokens_recomputed) == (0, late.num_prompt_tokens)


def test_verification_is_ordered_with_the_start(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What is to be compared with the sender's digest goes to the workers with the load, not a step before."""
    assert not recorder.events
    scheduler = delaying(make_scheduler("async"))
    verifier = scheduler._penstock.loads.verifier
    begun: list[int] = []
    own = verifier.on_load_begun

    def on_load_begun(request_id: str) -> None:
        begun.append(len(scheduler.deferred_loads))
        own(request_id)

    verifier.on_load_begun = on_load_begun
    _, *steps = park_late(scheduler)
    assert not begun
    for scheduled in steps:
        update(scheduler, scheduled)
    assert begun == [0]


def test_the_client_leaves_before_the_start(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The wait ends, its blocks are held by nobody, and nothing of it is left."""
    scheduler = delaying(make_scheduler("async"))
    late, *steps = park_late(scheduler)
    scheduler.finish_requests("late", LEFT)
    (ended,) = recorder.take("deferral_end", late.request_id)
    assert ended.ending == c.DEFERRAL_ENDING_ABORTED
    for scheduled in steps:
        update(scheduler, scheduled)
    loads = scheduler._penstock.loads
    assert not any(loads.deadlines.waiting)
    assert not loads.unconfirmed.allocated
    assert not recorder.snapshot().held


def test_recorded_though_penstock_was_paused_as_it_began_to_wait(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is what Penstock sees first: an attempt, and no load of the step."""
    assert not recorder.events
    scheduler = delaying(make_scheduler("async"))
    with monkeypatch.context() as paused:
        paused.setattr(runtime, "active", False)
        late, *steps = park_late(scheduler)
    for scheduled in steps:
        update(scheduler, scheduled)
    scheduler.schedule()
    loads = scheduler._penstock.loads
    assert scheduler._penstock.observer.record(late.request_id).external_tokens == late.num_tokens
    assert not loads.unconfirmed.steps
    finish_loads(scheduler, late)


@pytest.mark.parametrize("broken", [{0}, {1, 2}])
def test_output_after_a_recompute(
    broken: set[int], make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A connector that reports blocks: the late load fails, and every output is as if it had not."""
    scheduler = delaying(make_scheduler("async", **TOY))
    runtime.policy.swap(policy("recompute"), 1.0)
    engine = ToyEngine(
        scheduler, ahead=True, fails=lambda request_id, block: request_id == "first" and block in broken
    )
    other = request("other", first=499, tokens=3 * BLOCK, max_tokens=OUTPUTS)
    first = request("first", tokens=STORED + 5, max_tokens=OUTPUTS, params={"stored": STORED, "waits": True})
    scheduler.add_request(other)
    engine.step()
    engine.run(first)
    later = request("later", tokens=STORED + 40, max_tokens=OUTPUTS)
    engine.run(later)
    for each in (other, first, later):
        assert engine.outputs[each.request_id] == expected(each.prompt_token_ids, OUTPUTS)
    (outcome,) = recorder.take("load_outcome", "first")
    assert (outcome.outcome, outcome.attempt) == (c.OUTCOME_RECOMPUTED, 1)
    assert len(recorder.take("deferral_start", "first")) == 1


def test_step_is_usable(make_scheduler: MakeScheduler) -> None:
    """Without a step under way a load starts with its blocks, as ever."""
    scheduler = delaying(make_scheduler("async"))
    parked = request("now", params=remote(request_id="their-now"))
    scheduler.add_request(parked)
    step(scheduler)
    assert not scheduler.deferred_loads
    assert scheduler._penstock.observer.record("now").attempt == 1
