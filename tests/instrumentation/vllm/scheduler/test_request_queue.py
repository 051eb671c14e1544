"""What a snapshot says of the queue of vLLM's own schedulers: who runs, who waits for what, and the room in the KV cache."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.progress import SchedulerSteps
from penstock.instrumentation.vllm.scheduler import request_queue
from penstock.proto.v1 import snapshot_pb2 as wire

from tests.support.engine.schedulers import (
    BLOCK,
    BLOCKS,
    LOCAL,
    PEER,
    REMOTE,
    make_room_for_items,
    preempt,
    request,
    step,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.snapshot_pb2 import SchedulerQueue

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
LONG = 31 * BLOCK
"""Tokens of a prompt of which three fill the cache."""


def queue_of(recorder: Recorder) -> SchedulerQueue:
    """Return the queue of a snapshot taken now."""
    snapshot = recorder.snapshot()
    assert snapshot.HasField("queue")
    return snapshot.queue


def waiting(queue: SchedulerQueue) -> dict[str, int]:
    """Return how many wait, by the word of the reason."""
    assert all(row.oldest_start_time_unix_nano for row in queue.waiting)
    return {
        wire.QueueReason.Name(row.reason).removeprefix("QUEUE_REASON_"): row.count for row in queue.waiting
    }


def fill_with_leases(scheduler: Any) -> None:
    """Let three prompts end whose blocks nobody reads: 6 blocks are left."""
    for number in range(3):
        leased = request(f"leased-{number}", tokens=LONG, first=500 - number, params=LOCAL, max_tokens=1)
        scheduler.add_request(leased)
        while not leased.is_finished():
            step(scheduler)


@BOTH
def test_idle(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Nobody runs or waits; all blocks but vLLM's null block are free."""
    make_scheduler(kind)
    queue = queue_of(recorder)
    assert (queue.running, len(queue.waiting), len(queue.requests)) == (0, 0, 0)
    assert (queue.total_blocks, queue.free_blocks) == (BLOCKS - 1, BLOCKS - 1)
    assert (queue.pause, queue.last_step_time_unix_nano, queue.empty_steps) == (0, 0, 0)


@BOTH
def test_a_cache_full_of_leases(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Requests wait for blocks that finished ones keep, and so do those behind the first; a lease that ends lets one run."""
    scheduler = make_scheduler(kind, role="kv_producer")
    fill_with_leases(scheduler)
    for number in range(2):
        scheduler.add_request(request(f"waits-{number}", tokens=LONG, first=400 - number))
    assert waiting(queue_of(recorder)) == {"NEXT_STEP": 2}
    for _ in range(3):
        step(scheduler)
    snapshot = recorder.snapshot()
    queue = snapshot.queue
    assert (queue.running, waiting(queue)) == (0, {"CAPACITY": 2})
    assert (queue.total_blocks, queue.free_blocks) == (BLOCKS - 1, 6)
    assert (snapshot.leases.count, snapshot.leases.blocks) == (3, 93)
    assert queue.empty_steps >= 3
    first, second = queue.requests
    assert (first.request_id, first.waiting) == ("waits-0", wire.QUEUE_REASON_CAPACITY)
    assert (first.blocks, first.prompt_tokens, first.computed_tokens) == (0, LONG, 0)
    assert 0 < first.arrival_time_unix_nano < second.arrival_time_unix_nano < time.time_ns()
    assert queue.waiting[0].oldest_start_time_unix_nano == first.arrival_time_unix_nano
    # One that would fit waits behind the first all the same.
    scheduler.add_request(request("small", tokens=BLOCK, first=300))
    step(scheduler)
    assert waiting(queue_of(recorder)) == {"CAPACITY": 3}
    step(scheduler, finished_sending={"leased-0"})
    step(scheduler)
    queue = queue_of(recorder)
    assert (queue.running, waiting(queue)) == (1, {"CAPACITY": 2})
    assert queue.empty_steps == 0
    step(scheduler, finished_sending={"leased-1", "leased-2"})
    for _ in range(4):
        step(scheduler)
    assert not waiting(queue_of(recorder))


@BOTH
def test_what_is_watched_is_let_go(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """VLLM's own method is back after each step, and no entry is emitted however long the queue waits."""
    scheduler = make_scheduler(kind, role="kv_producer")
    fill_with_leases(scheduler)
    scheduler.add_request(request("waits", tokens=LONG, first=400))
    before = len(recorder.events)
    for _ in range(50):
        step(scheduler)
        assert "allocate_slots" not in vars(scheduler.kv_cache_manager)
        assert len(queue_of(recorder).requests) == 1
    assert len(recorder.events) == before


@BOTH
def test_running(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What runs is listed with its blocks; the last step tells when and how many tokens."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r", tokens=3 * BLOCK, max_tokens=40))
    before = time.time_ns()
    step(scheduler)
    queue = queue_of(recorder)
    (row,) = queue.requests
    assert (queue.running, row.request_id, row.waiting) == (1, "r", 0)
    assert (row.blocks, row.prompt_tokens, row.HasField("peer")) == (3, 3 * BLOCK, False)
    assert row.computed_tokens >= 3 * BLOCK
    assert before <= queue.last_step_time_unix_nano <= time.time_ns()
    assert queue.last_step_tokens == 3 * BLOCK
    step(scheduler)
    assert queue_of(recorder).last_step_tokens == 1


@BOTH
def test_max_num_seqs(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Eight run, the others wait for one of them to end."""
    scheduler = make_scheduler(kind)
    for number in range(11):
        scheduler.add_request(request(f"r{number}", tokens=BLOCK, first=400 - number, max_tokens=40))
    step(scheduler)
    queue = queue_of(recorder)
    assert (queue.running, waiting(queue)) == (8, {"RUNNING_LIMIT": 3})
    assert [row.request_id for row in queue.requests][:3] == ["r8", "r9", "r10"]


@BOTH
@pytest.mark.parametrize("state", ["PAUSED_NEW", "PAUSED_ALL"])
def test_paused(kind: str, state: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A pause of vLLM's has its start, and holds up what has not begun."""
    from vllm.v1.core.sched.interface import PauseState

    scheduler = make_scheduler(kind)
    before = time.time_ns()
    scheduler.set_pause_state(PauseState[state])
    scheduler.add_request(request("r"))
    step(scheduler)
    queue = queue_of(recorder)
    assert waiting(queue) == {"PAUSED": 1}
    assert queue.pause == PauseState[state].value
    start = queue.pause_start_time_unix_nano
    assert before <= start <= time.time_ns()
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert queue_of(recorder).pause_start_time_unix_nano == start
    scheduler.set_pause_state(PauseState.UNPAUSED)
    step(scheduler)
    queue = queue_of(recorder)
    assert (queue.running, len(queue.waiting)) == (1, 0)
    assert (queue.pause, queue.pause_start_time_unix_nano) == (0, 0)


@BOTH
def test_remote_kv(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A load is waited for until it has come; its peer is named, and nothing counts as computed before."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r", params=REMOTE))
    step(scheduler)
    queue = queue_of(recorder)
    assert waiting(queue) == {"REMOTE_KV": 1}
    (row,) = queue.requests
    assert (row.blocks, row.computed_tokens, row.peer.address) == (3, 0, PEER)
    step(scheduler, finished_recving={"r"})
    assert waiting(queue_of(recorder)) == {"NEXT_STEP": 1}
    step(scheduler)
    (row,) = queue_of(recorder).requests
    assert (row.waiting, row.peer.address) == (0, PEER)


@BOTH
def test_a_load_that_has_come_waits_for_a_place(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """VLLM does not look at it while all places are taken, and its status stays that of the load."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r", params=REMOTE))
    step(scheduler)
    for number in range(8):
        scheduler.add_request(request(f"r{number}", tokens=BLOCK, first=400 - number, max_tokens=40))
    step(scheduler)
    assert waiting(queue_of(recorder)) == {"REMOTE_KV": 1}
    step(scheduler, finished_recving={"r"})
    assert waiting(queue_of(recorder)) == {"RUNNING_LIMIT": 1}


@BOTH
def test_kv_lookup(
    kind: str, make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that does not know yet makes its request wait, and nobody behind it."""
    scheduler = make_scheduler(kind)
    known = scheduler.connector.connector_scheduler.get_num_new_matched_tokens
    monkeypatch.setattr(
        scheduler.connector.connector_scheduler,
        "get_num_new_matched_tokens",
        lambda asked, computed: (None, False) if asked.request_id == "r" else known(asked, computed),
    )
    scheduler.add_request(request("r"))
    scheduler.add_request(request("other", first=5, max_tokens=40))
    for _ in range(2):
        step(scheduler)
    queue = queue_of(recorder)
    assert (queue.running, waiting(queue)) == (1, {"KV_LOOKUP": 1})


@BOTH
def test_grammar(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A grammar that is compiled is not waited for, though vLLM has not looked yet."""
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler(kind)
    compiled: Future[Any] = Future()
    constrained = request("r")
    constrained.structured_output_request = SimpleNamespace(_grammar=compiled, grammar=None)
    constrained.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(constrained)
    step(scheduler)
    assert waiting(queue_of(recorder)) == {"GRAMMAR": 1}
    compiled.set_result("grammar")
    assert waiting(queue_of(recorder)) == {"NEXT_STEP": 1}


@BOTH
def test_lora_slots(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """One adapter fits: a request for another waits for it, one without an adapter does not."""
    scheduler = make_scheduler(kind)
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    for number, adapter in ((0, 1), (1, 2), (2, 0)):
        added = request(f"r{number}", tokens=BLOCK, first=400 - number, max_tokens=40)
        added.lora_request = SimpleNamespace(lora_int_id=adapter) if adapter else None
        scheduler.add_request(added)
    step(scheduler)
    step(scheduler)
    queue = queue_of(recorder)
    assert (queue.running, waiting(queue)) == (2, {"LORA_SLOTS": 1})
    assert [row.request_id for row in queue.requests if row.waiting] == ["r1"]


@BOTH
def test_preempted(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that is sent back waits since then, not since it came."""
    scheduler = make_scheduler(kind)
    scheduler.add_request(request("r", max_tokens=40))
    step(scheduler)
    before = time.time_ns()
    preempt(scheduler)
    queue = queue_of(recorder)
    assert waiting(queue) == {"NEXT_STEP": 1}
    assert queue.waiting[0].oldest_start_time_unix_nano >= before
    assert queue.requests[0].arrival_time_unix_nano < before


def test_a_step_that_preempts(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Requests that run out of blocks send others back: these and those that wait need room."""
    scheduler = make_scheduler(own="recompute")
    for number in range(8):
        scheduler.add_request(request(f"r{number}", tokens=12 * BLOCK, first=400 - number, max_tokens=200))
    while not any(each.status.name == "PREEMPTED" for each in scheduler.requests.values()):
        step(scheduler)
    scheduler.add_request(request("new", tokens=BLOCK, first=300))
    queue = queue_of(recorder)
    assert queue.running < 8
    assert waiting(queue) == {"CAPACITY": 9 - queue.running}


def test_token_budget(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """What a step has no tokens left for is waiting for the next."""
    scheduler = make_scheduler()
    for number in range(3):
        scheduler.add_request(request(f"r{number}", tokens=20 * BLOCK, first=400 - number))
    step(scheduler)
    queue = queue_of(recorder)
    assert queue.last_step_tokens == scheduler.max_num_scheduled_tokens
    assert (queue.running, waiting(queue)) == (2, {"NEXT_STEP": 1})


def test_another_reason(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that ends at a ready request for a reason that is not known here is told as other, not as want of blocks."""
    scheduler = make_scheduler(pictures=True)
    monkeypatch.setattr(
        scheduler, "_handle_blocked_waiting_request", scheduler._handle_blocked_waiting_request
    )
    scheduler.scheduler_config.enable_chunked_prefill = False
    scheduler.max_num_scheduled_tokens = 2 * BLOCK
    make_room_for_items(scheduler, chunk=2 * BLOCK)
    scheduler.add_request(request("r", tokens=4 * BLOCK))
    for _ in range(3):
        step(scheduler)
    assert waiting(queue_of(recorder)) == {"OTHER": 1}


def test_agentctl_pause(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """While Penstock is paused there is no queue, and none of what was seen before is told after it."""
    scheduler = make_scheduler(role="kv_producer")
    fill_with_leases(scheduler)
    scheduler.add_request(request("waits", tokens=LONG, first=400))
    for _ in range(3):
        step(scheduler)
    assert waiting(queue_of(recorder)) == {"CAPACITY": 1}
    runtime.pause("test", paused=True)
    try:
        step(scheduler)
        assert not recorder.snapshot().HasField("queue")
        assert not scheduler._penstock.scan.asked
        for each in ("leased-0", "leased-1"):
            step(scheduler, finished_sending={each})
    finally:
        runtime.pause("test", paused=False)
    assert waiting(queue_of(recorder)).keys() <= {"NEXT_STEP"}


def test_a_state_that_is_not_known(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A pause of a later vLLM, or a part that cannot be read: no queue, rather than half of one."""
    from penstock.instrumentation.core import guard

    scheduler = make_scheduler()
    scheduler.add_request(request("r"))
    state = scheduler._pause_state
    scheduler._pause_state = SimpleNamespace(name="PAUSED_SOMEHOW")
    assert not recorder.snapshot().HasField("queue")
    scheduler._pause_state = state
    guard.raising = False
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.kv_cache_manager.block_pool = None
    try:
        assert not recorder.snapshot().HasField("queue")
    finally:
        scheduler.kv_cache_manager.block_pool = pool
        guard.reset()


def test_the_part_that_is_missing() -> None:
    """A scheduler without what the queue is read from says what is lost."""

    class Another:
        def __init__(self) -> None:
            self.requests: dict[str, Any] = {}

    part = request_queue.queue_part(Another)
    assert part.name == "queue"
    assert "_pause_state" in part.missing()
    assert "get_request_counts" in part.missing()


def test_rows_are_bounded(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are counted, the oldest are listed; with long tables of blocks fewer are."""
    monkeypatch.setattr(request_queue, "CHUNK", 7)
    scheduler = make_scheduler()
    for number in range(200):
        scheduler.add_request(request(f"r{number}", tokens=BLOCK, first=1 + number, max_tokens=40))
    step(scheduler)
    queue = queue_of(recorder)
    assert (queue.running, waiting(queue)) == (8, {"RUNNING_LIMIT": 192})
    listed = [row.request_id for row in queue.requests]
    assert listed == [f"r{number}" for number in (*range(8, 72), *range(8))]
    monkeypatch.setattr(request_queue, "BLOCKS_MAX", 3)
    assert [row.request_id for row in queue_of(recorder).requests][64:] == ["r0", "r1", "r2"]


@BOTH
def test_read_while_the_scheduler_runs(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A thread that reads all the time sees each request once, whatever a step is at; nothing raises."""
    scheduler = make_scheduler(kind)
    errors: list[BaseException] = []
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                queue = queue_of(recorder)
                seen.append(queue.running + sum(row.count for row in queue.waiting))
        except Exception as error:  # noqa: BLE001  (the thread hands it over)
            errors.append(error)

    reader = threading.Thread(target=read)
    for number in range(60):
        scheduler.add_request(request(f"r{number}", tokens=2 * BLOCK, first=1 + number, max_tokens=4))
    reader.start()
    while scheduler.requests:
        step(scheduler)
    done.set()
    reader.join()
    assert not errors
    assert seen
    # A step moves requests from queue to queue; no reading misses one.
    assert all(before >= after for before, after in itertools.pairwise(seen))


@dataclass(eq=False)
class _Output:
    total_num_scheduled_tokens: int


@given(st.lists(st.integers(0, 3), max_size=30))
def test_empty_steps(tokens: list[int]) -> None:
    """They count since the last step with tokens, and only while somebody runs or waits."""
    counts = (0, 1)
    steps = SchedulerSteps(lambda: counts)
    expected, last = 0, 0
    for number, each in enumerate(tokens):
        counts = (0, 0) if number % 5 == 4 else (0, 1)
        output = _Output(each)
        steps.on_started()
        steps.on_scheduled(output)
        steps.on_updated(output)
        expected = 0 if each else expected + any(counts)
        last = each or last
    queue = wire.SchedulerQueue()
    steps.fill_queue(queue)
    assert (queue.empty_steps, queue.last_step_tokens) == (expected, last)


def test_the_numbers_are_the_wires() -> None:
    """Each reason has one constant, and each deferral one reason."""
    ours = {name: getattr(c, name) for name in dir(c) if name.startswith("QUEUE_REASON_")}
    theirs = {name: number for name, number in wire.QueueReason.items() if number}
    assert ours == theirs
    from penstock.proto.deferral_channels import DEFERRAL_CHANNELS

    assert set(request_queue._OF_DEFERRAL) == set(DEFERRAL_CHANNELS)
