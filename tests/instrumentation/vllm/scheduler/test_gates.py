"""The time to the first token by gate, on vLLM's own schedulers: the sum is the whole, and each wait is at its gate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.messages.transfers import FinishedTransfer
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport

from tests.support.ec.fake_ec import ToyEcEngine, image_request
from tests.support.engine.recorder import policy
from tests.support.engine.remote_loads import fail_load, park
from tests.support.engine.schedulers import BLOCK, preempt, request, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.events_pb2 import RequestClosed

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
LOCAL = {"queue", "own_prefill"}


def finish(scheduler: Any, recorder: Recorder, request_id: str) -> RequestClosed:
    """Let steps run until a request has finished; return its end."""
    while request_id in scheduler.requests:
        step(scheduler)
    (closed,) = recorder.take("request_closed", request_id)
    return closed


def times(closed: RequestClosed) -> dict[str, int]:
    """Return the gates of a request that are not 0; they add up to the time to its first token."""
    assert closed.HasField("gates")
    found = {field.name.removesuffix("_nano"): nano for field, nano in closed.gates.ListFields()}
    assert sum(found.values()) == closed.first_token_time_unix_nano - closed.arrival_time_unix_nano
    return found


@BOTH
def test_a_local_request(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Only room is waited for."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("local"))
    assert set(times(finish(scheduler, recorder, "local"))) == LOCAL


@BOTH
def test_a_good_load(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What the workers report parts the wait: the queue of handshakes, the peer, the transfer."""
    scheduler = make_scheduler(kind)
    parked = park(scheduler)
    queued, started, began = time.time_ns(), time.time_ns() + 1_000, time.time_ns() + 2_000
    step(scheduler, kv_connector_worker_meta=WorkerReport(handshakes=((parked.request_id, queued, False),)))
    while time.time_ns() <= began:
        pass
    report = WorkerReport(
        handshakes=((parked.request_id, started, True),), began=((parked.request_id, began),)
    )
    step(scheduler, finished_recving={parked.request_id}, kv_connector_worker_meta=report)
    found = times(finish(scheduler, recorder, parked.request_id))
    assert set(found) == {*LOCAL, "handshake_queue", "peer", "transfer"}
    assert found["handshake_queue"] == started - queued


@BOTH
@pytest.mark.parametrize("action", ["", "recompute"])
def test_a_failed_load(kind: str, action: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What is computed here in place of the load is recomputation, whoever decides so."""
    scheduler = make_scheduler(kind, own="recompute")
    if action:
        runtime.policy.swap(policy(action), 1.0)
    parked = park(scheduler)
    fail_load(scheduler, parked)
    assert set(times(finish(scheduler, recorder, parked.request_id))) - {"own_prefill"} == {
        "queue",
        "peer",
        "recompute",
    }


@BOTH
def test_a_preemption(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The wait for room and the prefill after it are recomputation, up to where the request was; the rest is its own prefill."""
    scheduler = make_scheduler(kind)
    scheduler.max_num_scheduled_tokens = BLOCK
    scheduler.add_request(request("preempted", tokens=4 * BLOCK))
    step(scheduler)
    preempt(scheduler)
    step(scheduler)
    step(scheduler)
    assert set(times(finish(scheduler, recorder, "preempted"))) == {*LOCAL, "recompute"}


@BOTH
def test_a_preemption_after_the_first_token_does_not_count(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The token had been given."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("late", max_tokens=8))
    for _ in range(3):
        step(scheduler)
    preempt(scheduler)
    assert set(times(finish(scheduler, recorder, "late"))) == LOCAL


def test_a_load_of_the_step_itself(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A connector that loads within the step: its time is transfer, not prefill."""
    scheduler = make_scheduler("sync")
    scheduler.max_num_scheduled_tokens = BLOCK
    scheduler.add_request(request("step", tokens=2 * BLOCK))
    step(scheduler)
    now = time.time_ns()
    move = FinishedTransfer("step", "Connector", 0, c.DIRECTION_RECEIVE, now, 1_000)
    while time.time_ns() <= now + 1_000:
        pass
    step(scheduler, kv_connector_worker_meta=WorkerReport(moves=(move,)))
    assert times(finish(scheduler, recorder, "step"))["transfer"] == 1_000


@BOTH
def test_an_abort_before_the_first_token(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The gates go up to the end, and the absent first token says that they are no time to one."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler(kind)
    parked = park(scheduler)
    scheduler.finish_requests(parked.request_id, RequestStatus.FINISHED_ABORTED)
    (closed,) = recorder.take("request_closed", parked.request_id)
    assert not closed.first_token_time_unix_nano
    assert closed.gates.queue_nano > 0
    assert closed.gates.peer_nano > 0
    assert {field.name for field, _ in closed.gates.ListFields()} == {"queue_nano", "peer_nano"}


@BOTH
@pytest.mark.parametrize("arrives", ["before", "during"])
def test_a_pause_before_the_first_token(
    kind: str, arrives: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """What is not observed is not known: no gates, no first token."""
    scheduler = make_scheduler(kind)
    waiting = request("paused")
    if arrives == "before":
        scheduler.add_request(waiting)
    runtime.pause("test", paused=True)
    if arrives == "during":
        scheduler.add_request(waiting)
    runtime.pause("test", paused=False)
    if arrives == "during":
        # Whoever asks about it begins its record.
        scheduler._penstock.observer.record_of(waiting)
    closed = finish(scheduler, recorder, "paused")
    assert (closed.HasField("gates"), closed.first_token_time_unix_nano) == (False, 0)


@BOTH
def test_a_pause_after_the_first_token(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """By then they are known."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("known", max_tokens=8))
    for _ in range(3):
        step(scheduler)
    runtime.pause("test", paused=True)
    runtime.pause("test", paused=False)
    assert set(times(finish(scheduler, recorder, "known"))) == LOCAL


@BOTH
def test_a_wait_for_an_encoder(kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The wait is at the encoder's gate, whatever computes the rest."""
    scheduler = make_ec_scheduler(kind, connector="ToyLoader")
    scheduler.ec_connector.coming |= {"a"}
    engine = ToyEcEngine(scheduler, ahead=kind == "async")
    scheduler.add_request(image_request("waiting", {10: ("a", 40)}, tokens=94, max_tokens=2))
    for _ in range(3):
        engine.step()
    scheduler.ec_connector.coming.clear()
    scheduler.ec_connector.store |= {"a"}
    engine.run()
    (closed,) = recorder.take("request_closed", "waiting")
    assert set(times(closed)) == {*LOCAL, "encoder"}
