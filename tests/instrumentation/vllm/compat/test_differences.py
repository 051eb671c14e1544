"""Differences between versions, over classes that have an older vLLM's shape; on real older ones: ``make test-versions``."""

from __future__ import annotations

import queue
import time
from abc import ABC
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.hooks import instrumented
from penstock.instrumentation.vllm.compat import (
    admits_holders_when_paused,
    can_fail_receive,
    connector_differences,
    drop_stale_output,
    fail_receive,
    failed_receives,
    has_failed_receive,
    has_stale_output,
    move_stream,
    preempt_dropping,
    running_limit,
    scheduler_differences,
    worker_differences,
)

WAITING = SimpleNamespace(name="WAITING_FOR_REMOTE_KVS")


class OldScheduler:
    """As of 0.26: other names, no stages, failed loads by their blocks."""

    def __init__(self, requests: dict[str, Any] | None = None) -> None:
        self.requests = requests or {}
        self.finished_recving_kv_req_ids: set[str] = set()
        self.failed_recving_kv_req_ids: set[str] = set()
        self.recompute_kv_load_failures = True
        self.preempted: list[Any] = []

    def schedule(self) -> str:
        """Schedule."""
        return "output"

    def _update_from_kv_xfer_finished(self, kv_connector_output: Any) -> None:
        self.finished_recving_kv_req_ids |= {
            each for each in kv_connector_output.finished_recving if self.requests[each].status is WAITING
        }

    def _try_promote_blocked_waiting_request(self, request: Any) -> bool:
        return bool(request.ready)

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        self.preempted.append((request, timestamp))

    def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> tuple[list[int], bool]:
        del request
        return new_token_ids, True


class AsyncScheduler(OldScheduler):
    """Discards frames itself."""


class NewScheduler(OldScheduler):
    """As of the newest: nothing differs."""

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None: ...

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        return bool(request.ready)

    def _handle_failed_recving(self, failed_req_ids: set[str]) -> set[str]:
        return failed_req_ids

    def _preempt_request(self, request: Any, timestamp: float, *, drop_stale_output: bool = False) -> None:
        self.preempted.append((request, timestamp, drop_stale_output))


class OurMixin:
    """What Penstock puts in front."""

    allocated: tuple[str, ...] = ()

    def __init__(self, *args: Any) -> None:
        upstream: Any = super()
        upstream.__init__(*args)
        self.stages: list[tuple[str, str | None]] = []
        self.asked: list[tuple[str, bool]] = []

    def _penstock_allocated(self) -> tuple[str, ...]:
        return self.allocated

    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        upstream: Any = super()
        upstream._set_kv_fetch_stage(request, stage)
        self.stages.append((request.request_id, stage))

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        upstream: Any = super()
        ready: bool = upstream._handle_blocked_waiting_request(request)
        self.asked.append((request.request_id, ready))
        return ready


def request(name: str, **fields: Any) -> Any:
    """Make a request that waits for its load."""
    return SimpleNamespace(request_id=name, **{"status": WAITING, "ready": False, **fields})


def over(base: type, *args: Any) -> Any:
    """Build a scheduler of *base* as the hook does."""
    found = base
    for mixin in (*scheduler_differences(base), OurMixin):
        found = instrumented(mixin, found)
    return found(*args)


def test_looks_at_the_queue_of_an_old_scheduler() -> None:
    """Until 0.30 a scheduler asks about blocked requests only; its choice of a queue tells which it looks at."""
    first = request("first")

    class Queue(deque[Any]):
        def peek_request(self) -> Any:
            return self[0]

    class Choosing(OldScheduler):
        queue: Queue | None = Queue([first])

        def _select_waiting_queue_for_scheduling(self) -> Queue | None:
            return self.queue

    class Looking(OurMixin):
        looked: Any = None

        def _penstock_on_looked(self, request: Any) -> None:
            self.looked = request

    found: type = Choosing
    for mixin in (*scheduler_differences(Choosing), Looking):
        found = instrumented(mixin, found)
    scheduler: Any = found()
    assert scheduler._select_waiting_queue_for_scheduling() is Choosing.queue
    assert scheduler.looked is first
    scheduler.queue = None
    assert scheduler._select_waiting_queue_for_scheduling() is None


def test_how_many_run_and_who_goes_on_in_a_pause() -> None:
    """The second limit counts where there is one; a scheduler that counts holders in a pause runs them."""

    class Holders:
        max_num_running_reqs = 8
        max_num_active_reqs = 4
        kv_holding_waiting = ()

        def get_num_unfinished_requests(self) -> int:
            return len(self.kv_holding_waiting)

    class NoHolders:
        max_num_running_reqs = 8

        def get_num_unfinished_requests(self) -> int:
            return 0

    assert (running_limit(Holders()), running_limit(NoHolders())) == (4, 8)
    assert (admits_holders_when_paused(Holders()), admits_holders_when_paused(NoHolders())) == (True, False)


def test_the_newest_needs_nothing() -> None:
    """No mixin stands between."""
    assert not scheduler_differences(NewScheduler)
    assert len(scheduler_differences(OldScheduler)) == 4
    # That one discards frames itself.
    assert len(scheduler_differences(AsyncScheduler)) == 3


def test_the_stages_of_a_load() -> None:
    """It waits behind the step that began it, if vLLM lets it wait, and no longer when it has come."""
    waits, runs = request("waits"), request("runs", status=SimpleNamespace(name="RUNNING"))
    scheduler = over(OldScheduler, {"waits": waits, "runs": runs})
    scheduler.allocated = ("waits", "runs", "gone")
    assert scheduler.schedule() == "output"
    assert scheduler.stages == [("waits", "in_progress")]
    scheduler._update_from_kv_xfer_finished(SimpleNamespace(finished_recving={"waits", "runs"}))
    assert scheduler.stages[1:] == [("waits", "completed_waiting")]


def test_a_request_that_is_blocked() -> None:
    """VLLM's question by its old name gets its own answer, by way of the mixin."""
    scheduler = over(OldScheduler)
    assert scheduler._try_promote_blocked_waiting_request(request("r", ready=True))
    assert not scheduler._try_promote_blocked_waiting_request(request("s"))
    assert scheduler.asked == [("r", True), ("s", False)]


@pytest.mark.parametrize("recompute", [True, False])
def test_a_load_that_failed_as_a_whole(*, recompute: bool) -> None:
    """The request loses all of it, or fails; one that does not wait is left alone."""
    waits = request("waits", num_computed_tokens=32)
    runs = request("runs", status=SimpleNamespace(name="RUNNING"), num_computed_tokens=32)
    scheduler = over(OldScheduler, {"waits": waits, "runs": runs})
    scheduler.recompute_kv_load_failures = recompute
    assert scheduler._handle_failed_recving({"waits", "runs", "gone"}) == (set() if recompute else {"waits"})
    assert (waits.num_computed_tokens, runs.num_computed_tokens) == (0 if recompute else 32, 32)
    assert scheduler.failed_recving_kv_req_ids == ({"waits"} if recompute else set())


def test_stale_output_under_synchronous_scheduling() -> None:
    """The frame of the step that is under way is dropped, the next is not; within a prompt there is none."""
    scheduler = over(OldScheduler)
    decodes = request("r", async_tokens_to_discard=0, num_output_placeholders=0, is_prefill_chunk=False)
    preempt_dropping(scheduler, decodes, 7.0)
    assert scheduler.preempted == [(decodes, 7.0)]
    assert scheduler._update_request_with_output(decodes, [1]) == ([], False)
    assert scheduler._update_request_with_output(decodes, [2]) == ([2], True)
    within = request("s", async_tokens_to_discard=0, num_output_placeholders=0, is_prefill_chunk=True)
    preempt_dropping(scheduler, within, 8.0)
    assert scheduler._update_request_with_output(within, [3]) == ([3], True)


def test_stale_output_under_asynchronous_scheduling() -> None:
    """All frames in flight are to be dropped, as vLLM does when it resets its prefix cache."""
    scheduler = over(AsyncScheduler)
    preempted = request("r", async_tokens_to_discard=0, num_output_placeholders=2)
    assert has_stale_output(preempted)
    drop_stale_output(scheduler, preempted)
    assert (preempted.async_tokens_to_discard, preempted.num_output_placeholders) == (2, 0)
    assert not has_stale_output(preempted)


def test_stale_output_of_the_newest() -> None:
    """It has a mark of its own."""
    scheduler = over(NewScheduler)
    stale = request("r", num_stale_output_tokens=1, drop_stale_output=False)
    assert has_stale_output(stale)
    drop_stale_output(scheduler, stale)
    assert stale.drop_stale_output
    preempt_dropping(scheduler, stale, 7.0)
    assert scheduler.preempted == [(stale, 7.0, True)]


class OldWorker:
    """A NIXL worker as of 0.28: it ends leases inside, and tells failed loads by their blocks."""

    def __init__(self) -> None:
        self._reqs_to_send: dict[str, float] = {}
        self._invalid_block_ids: queue.Queue[set[int]] = queue.Queue()
        self._failed_recv_reqs: queue.Queue[str] = queue.Queue()
        self._is_hma_required = False
        self.read: set[str] = set()

    def _get_new_notifs(self) -> set[str]:
        for each in self.read:
            self._reqs_to_send.pop(each, None)
        return set(self.read)

    def get_finished(self) -> tuple[set[str], set[str]]:
        """Tell what has ended, as vLLM does."""
        sent = self._get_new_notifs()
        now = time.perf_counter()
        for each in [name for name, end in self._reqs_to_send.items() if end <= now]:
            del self._reqs_to_send[each]
            sent.add(each)
        return sent, set()


class OurWorkerMixin:
    """What Penstock puts in front of a worker."""

    def __init__(self) -> None:
        upstream: Any = super()
        upstream.__init__()
        self.expired: list[str] = []
        self.results: list[Any] = []

    def _penstock_on_expired(self, request_ids: list[str]) -> None:
        self.expired += request_ids

    def get_transfer_results(self) -> Any:
        """Look at the results, and say that one has failed."""
        upstream: Any = super()
        results = upstream.get_transfer_results()
        self.results.append(results)
        return results


def test_the_results_and_leases_of_a_worker() -> None:
    """VLLM's own question gets its own answer, with the mixin in between; a lease that was read has not expired."""
    found: type = OldWorker
    for mixin in (*worker_differences(OldWorker), OurWorkerMixin):
        found = instrumented(mixin, found)
    worker: Any = found()
    now = time.perf_counter()
    worker._reqs_to_send = {"read": now - 2, "expired": now - 1, "soon": now + 3, "later": now + 60}
    worker.read = {"read"}
    assert worker.get_finished() == ({"read", "expired"}, set())
    assert worker.expired == ["expired"]
    assert worker.results[0].failed_recving == set()
    assert worker.get_finished() == ({"read"}, set())
    assert worker.expired == ["expired"]


class OldConnector(ABC):  # noqa: B024  (as vLLM's)
    """A connector as of 0.28."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Tell what has ended."""
        return finished_req_ids, None


def test_the_results_of_a_connector() -> None:
    """Its class can be put in place of a living object's."""
    (mixin,) = connector_differences(OldConnector)
    connector: Any = OldConnector()
    connector.__class__ = instrumented(mixin, OldConnector)
    assert connector.get_finished({"r"}) == ({"r"}, set())
    assert connector.get_transfer_results({"r"}).finished_recving == set()
    assert not connector_differences(type(connector))


def test_a_failed_receive_of_an_old_worker() -> None:
    """It is told by its blocks, and cannot be where they have several groups."""
    worker = OldWorker()
    assert can_fail_receive(worker)
    assert not has_failed_receive(worker, "r")
    fail_receive(worker, "r", [[3, 4]])
    assert (worker._invalid_block_ids.get_nowait(), worker._failed_recv_reqs.get_nowait()) == ({3, 4}, "r")
    worker._is_hma_required = True
    assert not can_fail_receive(worker)


def test_a_failed_receive_of_the_newest() -> None:
    """It is told by its request, whatever its blocks are."""
    worker: Any = OldWorker()
    worker._recv_failures, worker._is_hma_required = {"told"}, True
    assert can_fail_receive(worker)
    assert has_failed_receive(worker, "told")
    fail_receive(worker, "r", [[3, 4], [5]])
    assert worker._failed_recv_reqs.get_nowait() == "r"
    assert worker._invalid_block_ids.empty()


def test_what_a_step_says_of_failed_receives() -> None:
    """Only a newer one names them."""
    assert failed_receives(SimpleNamespace(failed_recving={"r"})) == {"r"}
    assert failed_receives(SimpleNamespace(failed_recving=None)) == set()
    assert failed_receives(SimpleNamespace()) == set()


def test_the_stream_of_a_move() -> None:
    """By either name."""
    assert [move_stream(each) for each in ({"stream": 1}, {"cuda_stream": 2}, {"stream": None})] == [
        1,
        2,
        None,
    ]
