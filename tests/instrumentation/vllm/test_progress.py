"""What a snapshot says about what goes on, of vLLM's own schedulers and connectors."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.vllm.progress import ConnectorThreads, SchedulerSteps
from penstock.proto.v1.snapshot_pb2 import Progress, Snapshot

from tests.instrumentation.vllm.kv.base.test_connectors import Cache
from tests.support.agent.agent import wait_until
from tests.support.engine.schedulers import BLOCK, PEER, REMOTE, request, step
from tests.support.kv.connector_trial import example
from tests.support.kv.fake_mover import run_step, worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


@dataclass
class Scheduled:
    """What the counts of steps look at in a SchedulerOutput."""

    total_num_scheduled_tokens: int


BOTH = pytest.mark.parametrize("kind", ["sync", "async"])


@BOTH
def test_waits_that_have_not_started(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """By peer, until a worker has begun the transfer."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r1", params=REMOTE))
    scheduler.add_request(request("r2", params=REMOTE, first=2))
    step(scheduler)
    (row,) = recorder.snapshot().progress.unstarted
    assert (row.peer.address, row.count) == (PEER, 2)
    assert row.oldest_start_time_unix_nano
    scheduler._penstock.observer._deferrals.on_transfer_began("r1", time.time_ns())
    (row,) = recorder.snapshot().progress.unstarted
    assert row.count == 1
    step(scheduler, finished_recving={"r2"})
    assert not recorder.snapshot().progress.unstarted


@BOTH
def test_steps_and_requests_are_counted(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """An engine that waits for nothing is in no step."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r1", params=REMOTE))
    step(scheduler)
    progress = recorder.snapshot().progress
    assert (progress.steps, progress.step_start_time_unix_nano) == (0, 0)
    assert (progress.requests, progress.requests_to_load) == (1, 1)
    scheduler.add_request(request("r2", first=2))
    scheduled = scheduler.schedule()
    progress = recorder.snapshot().progress
    assert progress.steps == 1
    assert 0 < progress.step_start_time_unix_nano <= time.time_ns()
    assert scheduled.total_num_scheduled_tokens
    assert (progress.requests, progress.requests_to_load) == (2, 1)


def test_results_end_steps_in_their_order() -> None:
    """With two steps under way, the result of the first moves the start, that of the second clears it."""
    steps, progress = SchedulerSteps(), Progress()
    first, second, empty = Scheduled(1), Scheduled(1), Scheduled(0)

    def start() -> int:
        steps.fill(progress)
        return progress.step_start_time_unix_nano

    for each in (first, second):
        steps.on_started()
        steps.on_scheduled(each)
    began = start()
    steps.on_updated(first)
    assert start() >= began > 0
    steps.on_started()
    steps.on_scheduled(empty)
    steps.on_updated(empty)
    assert start()
    steps.on_updated(second)
    assert start() == 0
    steps.on_started()
    steps.on_scheduled(empty)
    assert start() == 0
    assert progress.steps == 2


def test_a_step_without_a_result() -> None:
    """It failed and the engine goes on: it lasts until vLLM drops its output, and the next one begins anew."""
    steps, progress = SchedulerSteps(outlives_failures=True), Progress()

    def start() -> int:
        steps.fill(progress)
        return progress.step_start_time_unix_nano

    failed = Scheduled(1)
    steps.on_started()
    steps.on_scheduled(failed)
    began = start()
    assert began
    del failed
    assert start() == 0
    steps.on_started()
    following = Scheduled(1)
    steps.on_scheduled(following)
    assert start() > began
    steps.on_updated(following)
    assert start() == 0
    assert progress.steps == 2


def test_a_prompt_that_was_to_be_loaded_and_was_not(
    make_scheduler: MakeScheduler, recorder: Recorder, tmp_path: Path
) -> None:
    """A connector that takes no parameters computes it; vLLM says nothing."""
    scheduler = make_scheduler(**example(tmp_path / "store"))
    connector, cache = worker(scheduler.vllm_config), Cache()
    asked = request("asked", params=REMOTE)
    for each in (asked, request("not asked", first=5)):
        scheduler.add_request(each)
        for _ in range(6):
            run_step(scheduler, [connector], context=cache.context)
    closed = {name: recorder.take("request_closed", name)[0] for name in ("asked", "not asked")}
    assert closed["asked"].unloaded_tokens == asked.num_prompt_tokens > BLOCK
    assert closed["not asked"].unloaded_tokens == 0
    assert recorder.snapshot().progress.unloaded_requests == 1


def test_a_prompt_that_is_loaded_or_fails_to_load_is_not_missed(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A load that was begun is one, whatever becomes of it."""
    scheduler = make_scheduler("sync")
    results: dict[str, dict[str, Any]] = {
        "r1": {"finished_recving": {"r1"}},
        "r2": {"failed_recving": {"r2"}},
    }
    for name, result in results.items():
        scheduler.add_request(request(name, params=REMOTE, first=ord(name[1])))
        step(scheduler)
        step(scheduler, **result)
        for _ in range(6):
            step(scheduler)
    assert recorder.snapshot().progress.unloaded_requests == 0


def test_a_save_that_does_not_return(
    make_scheduler: MakeScheduler, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM's ExampleConnector writes a file; the call is there while it does not end, and gone afterwards."""
    scheduler = make_scheduler(**example(tmp_path / "store"))
    connector, cache = worker(scheduler.vllm_config), Cache()
    entered, leave = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        entered.set()
        leave.wait(60)

    monkeypatch.setattr("safetensors.torch.save_file", hang)
    monkeypatch.setattr("penstock.instrumentation.vllm.progress.OPEN_NS", 0)
    scheduler.add_request(request("r"))
    stepping = threading.Thread(
        target=run_step, args=(scheduler, [connector]), kwargs={"context": cache.context}
    )
    stepping.start()
    try:
        assert entered.wait(60)
        (call,) = recorder.snapshot().progress.calls
        assert (call.name, call.connector, call.rank) == ("save_kv_layer", "ExampleConnector", 0)
    finally:
        leave.set()
        stepping.join()
    progress = recorder.snapshot().progress
    assert not progress.calls
    assert progress.steps >= 1


def test_a_thread_that_has_ended() -> None:
    """It is told by its name without its number, once it has lived; other threads are not."""
    threads = ConnectorThreads()
    end = threading.Event()
    pool = [
        threading.Thread(target=end.wait, name=f"vllm-nixl-handshake-initiator_{number}")
        for number in range(2)
    ]
    other = threading.Thread(target=end.wait, name="another")

    def rows() -> list[tuple[str, int, bool]]:
        snapshot = Snapshot()
        threads.fill(snapshot)
        return [(row.name, row.alive, row.ended_time_unix_nano > 0) for row in snapshot.progress.threads]

    before = rows()
    for thread in (*pool, other):
        thread.start()
    alive = [row for row in rows() if row not in before]
    end.set()
    for thread in (*pool, other):
        thread.join()
    assert [name for name, *_ in alive] == ["vllm-nixl-handshake-initiator"]
    (_, count, ended) = alive[0]
    assert (count >= 2, ended) == (True, False)
    if count == 2:
        wait_until(lambda: ("vllm-nixl-handshake-initiator", 0, True) in rows(), "the threads have ended")
