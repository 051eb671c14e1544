"""The queue of a scheduler: what runs, what waits and for what, the room in the KV cache, a pause.

The exporter's thread reads it once a second, from the table of all requests and their status: while a step is put together,
vLLM's own queues lack what it has looked at. What that table does not tell, why the last look at the queue ended, is kept on the
scheduler's thread: :class:`QueueScan`.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guarded
from penstock.instrumentation.hooks import AnyOf, InstanceState, Part, Patch, Requirement
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import admits_holders_when_paused, running_limit
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from penstock.instrumentation.vllm.progress import SchedulerSteps
    from penstock.instrumentation.vllm.requests import OpenDeferral, SchedulerObserver
    from penstock.proto.v1.snapshot_pb2 import QueueReason, SchedulerPause, SchedulerQueue, Snapshot

ROWS_MAX: Final = 64
"""Requests that are listed, of those that wait and of those that run."""

CHUNK: Final = 1_000
"""Requests that are looked at before other threads get their turn: less than half a millisecond."""

BLOCKS_MAX: Final = 50_000
"""Entries of block tables that one reading looks at, about a millisecond; later requests are not listed."""

_IS_NULL: Final = attrgetter("is_null")

# PauseState by name.
_PAUSES: Final = {"UNPAUSED": 0, "PAUSED_NEW": 1, "PAUSED_ALL": 2}
_PAUSED_ALL: Final = 2

_OF_DEFERRAL: Final = {
    c.DEFERRAL_REASON_OTHER: c.QUEUE_REASON_OTHER,
    c.DEFERRAL_REASON_REMOTE_KV: c.QUEUE_REASON_REMOTE_KV,
    c.DEFERRAL_REASON_KV_LOOKUP: c.QUEUE_REASON_KV_LOOKUP,
    c.DEFERRAL_REASON_ENCODER_CACHE: c.QUEUE_REASON_ENCODER_CACHE,
    c.DEFERRAL_REASON_GRAMMAR: c.QUEUE_REASON_GRAMMAR,
    c.DEFERRAL_REASON_STREAMING_INPUT: c.QUEUE_REASON_STREAMING_INPUT,
}

_STATE: Final = (
    "_pause_state",
    "finished_recving_kv_req_ids",
    "kv_cache_manager",
    "lora_config",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "num_waiting_for_streaming_input",
    "requests",
    "running",
)


def queue_part(scheduler: type) -> Part:
    """Return what the queue of a scheduler class needs; without it the snapshot has none."""
    return Part(
        "queue",
        "the scheduler's queue: what waits for it, and for what",
        (
            InstanceState(scheduler, _STATE),
            Requirement(scheduler, "get_request_counts"),
            Requirement(scheduler, "set_pause_state", ("pause_state",)),
            AnyOf(
                (
                    Requirement(scheduler, "_handle_blocked_waiting_request", ("request",)),
                    Requirement(scheduler, "_select_waiting_queue_for_scheduling"),
                )
            ),
        ),
    )


class _Nobody:
    """Stands for the request of a step that looks at none, and whose end changes something all the same."""

    status = None
    request_id = ""


class QueueScan:
    """Why vLLM's looks at its queue end; on the scheduler's thread.

    A look ends without a trace where blocks are missing: ``allocate_slots`` returns None. The call is watched only in a step
    after one that has left a request which was ready, and only from the first look at the queue on, so that a running request
    never pays for it.

    Attributes:
        looked: what :meth:`settle` is to be called for at the end of the step: the last request that it has looked at and that
            nothing of its own blocked; None for nothing. Set by the mixin.
        asked: whether the next look is to be watched.
        no_room: whether the last step left the queue because it had no blocks.
        stopped: whether the last step left a ready request for another reason.

    """

    __slots__ = (
        "_deferred",
        "_plain",
        "_preempted",
        "_refused",
        "_scheduler",
        "_unsettled",
        "_watch",
        "asked",
        "looked",
        "no_room",
        "stopped",
    )

    def __init__(self, scheduler: Any, deferred: Container[str]) -> None:
        """Observe the looks of *scheduler*; *deferred* are the requests that something of their own blocks."""
        from vllm.v1.request import RequestStatus

        self._scheduler = scheduler
        self._deferred = deferred
        self._plain = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        self._watch: Patch | None = None
        self._refused = False
        self._preempted = False
        self._unsettled = False
        self.looked: Any = None
        self.asked = False
        self.no_room = False
        self.stopped = False

    @guarded("scheduler", default=None)
    def watch(self) -> None:
        """See whether the blocks that vLLM asks for are there, until :meth:`settle`. Idempotent."""
        if self._watch is not None:
            return
        manager = self._scheduler.kv_cache_manager
        original = manager.allocate_slots

        def allocate_slots(*args: Any, **kwargs: Any) -> Any:
            blocks = original(*args, **kwargs)
            if blocks is None:
                self._refused = True
            return blocks

        self._watch = Patch()
        self._watch.set(manager, "allocate_slots", allocate_slots)

    def on_preempted(self) -> None:
        """Record that a request loses its blocks: a step that preempts looks at none that waits."""
        self._preempted = self._unsettled = True
        if self.looked is None:
            self.looked = _Nobody

    @guarded("scheduler", default=None)
    def settle(self) -> None:
        """Note how the look of this step has ended."""
        looked, self.looked = self.looked, None
        left = looked.status in self._plain
        if not left and not self._unsettled:
            return
        watched, refused = self._watch is not None, self._refused
        # Preempted before the step, it would have been looked at now.
        preempted = self._preempted and looked is _Nobody
        self._refused = self._preempted = False
        if self._watch is not None:
            self._watch.undo()
            self._watch = None
        self.asked = left = left and looked.request_id not in self._deferred and runtime.active
        self.no_room = (refused or preempted) and runtime.active
        self.stopped = left and watched and not self.no_room
        self._unsettled = left or self.no_room
        if self._unsettled:
            self.looked = _Nobody


class RequestQueue:
    """Reads the queue of one scheduler; on the exporter's thread, without a lock.

    Copies of vLLM's dicts are made in one piece. A request may move on between two readings of it: each is counted once, with
    what is true of it at one moment.
    """

    def __init__(
        self, scheduler: Any, observer: SchedulerObserver, scan: QueueScan, steps: SchedulerSteps
    ) -> None:
        """Read *scheduler*, whose class has what :func:`queue_part` names."""
        from vllm.v1.request import RequestStatus

        self._scheduler = scheduler
        self._observer = observer
        self._scan = scan
        self._steps = steps
        self._status: Any = RequestStatus
        self._limit = running_limit(scheduler)
        self._admits_holders = admits_holders_when_paused(scheduler)
        self.pause_start_ns = 0

    def on_pause(self, state: Any) -> None:
        """Record that the scheduler is paused, or goes on; on the scheduler's thread."""
        if not _PAUSES.get(state.name, 1):
            self.pause_start_ns = 0
        elif not self.pause_start_ns:
            self.pause_start_ns = time.time_ns()

    def fill(self, snapshot: Snapshot) -> None:
        """Add the queue; nothing while Penstock is paused, or where vLLM has a state that is not known here."""
        pause = _PAUSES.get(self._scheduler._pause_state.name)
        if not runtime.active or pause is None:
            return
        queue = snapshot.queue
        try:
            queue.SetInParent()
            self._fill(queue, pause)
        except BaseException:
            # Half a queue is not true.
            snapshot.ClearField("queue")
            raise

    def _fill(self, queue: SchedulerQueue, pause: int) -> None:
        scheduler = self._scheduler
        requests = list(scheduler.requests.copy().values())
        pool = scheduler.kv_cache_manager.block_pool
        queue.total_blocks = max(pool.num_gpu_blocks - 1, 0)
        queue.free_blocks = pool.get_num_free_blocks()
        queue.pause = cast("SchedulerPause", pause)
        queue.pause_start_time_unix_nano = self.pause_start_ns if pause else 0
        self._steps.fill_queue(queue)
        reading = _Reading(self._status, self._observer, self._observer.open_waits(), self._loras())
        reading.recved = scheduler.finished_recving_kv_req_ids
        reading.stop = self._stop(pause)
        if pause and pause != _PAUSED_ALL and self._admits_holders:
            reading.holders_stop = self._stop(0)
        else:
            reading.holders_stop = reading.stop
        for start in range(0, len(requests), CHUNK):
            if start:
                time.sleep(0)
            reading.look(requests[start : start + CHUNK])
        reading.fill(queue)
        left = BLOCKS_MAX
        for request, reason, since in (*reading.waiting, *reading.running):
            groups = scheduler.kv_cache_manager.coordinator.get_blocks(request.request_id)
            left -= sum(map(len, groups))
            if left < 0:
                break
            blocks = sum(len(group) - sum(map(_IS_NULL, group)) for group in groups)
            self._add(queue, request, reason, since, blocks, reading.waits)

    def _add(
        self,
        queue: SchedulerQueue,
        request: Any,
        reason: int,
        arrival_ns: int,
        blocks: int,
        waits: Mapping[str, OpenDeferral],
    ) -> None:
        record, wait = self._observer.record(request.request_id), waits.get(request.request_id)
        computed = request.num_computed_tokens
        if reason == c.QUEUE_REASON_REMOTE_KV:
            # vLLM counts what is to be loaded from the beginning of the load on.
            computed = record.local_tokens if record is not None else 0
        peer = wait.peer if wait is not None and wait.peer is not None else None
        if peer is None and record is not None:
            peer = record.peer
        queue.requests.add(
            request_id=request.request_id,
            waiting=cast("QueueReason", reason),
            arrival_time_unix_nano=arrival_ns,
            blocks=blocks,
            prompt_tokens=request.num_prompt_tokens,
            computed_tokens=max(computed, 0),
            peer=peer.fields() if peer is not None else None,
        )

    def _stop(self, pause: int) -> int:
        """Return what a request waits for that nothing of its own blocks."""
        scheduler, scan = self._scheduler, self._scan
        if pause:
            return c.QUEUE_REASON_PAUSED
        if len(scheduler.running) + scheduler.num_waiting_for_streaming_input >= self._limit:
            return c.QUEUE_REASON_RUNNING_LIMIT
        if scan.no_room:
            return c.QUEUE_REASON_CAPACITY
        if scan.stopped and self._steps.tokens < scheduler.max_num_scheduled_tokens:
            return c.QUEUE_REASON_OTHER
        return c.QUEUE_REASON_NEXT_STEP

    def _loras(self) -> Container[int] | None:
        """Return the ids of the adapters that run if no other fits beside them, else None."""
        config = self._scheduler.lora_config
        if config is None:
            return None
        running = (each.lora_request for each in self._scheduler.running.copy())
        ids = {each.lora_int_id for each in running if each is not None}
        return ids if len(ids) >= config.max_loras else None


class _Reading:
    """One reading: the requests by what they wait for, and the oldest of them."""

    def __init__(
        self,
        status: Any,
        observer: SchedulerObserver,
        waits: Mapping[str, OpenDeferral],
        loras: Container[int] | None,
    ) -> None:
        self.waits = waits
        self.stop = self.holders_stop = c.QUEUE_REASON_NEXT_STEP
        self.recved: Container[str] = ()
        self.waiting: list[tuple[Any, int, int]] = []
        self.running: list[tuple[Any, int, int]] = []
        self._status = status
        self._observer = observer
        self._loras = loras
        self._runs = 0
        # By reason: how many, and the oldest start.
        self._counts: dict[int, int] = {}
        self._oldest: dict[int, int] = {}

    def look(self, requests: Iterable[Any]) -> None:
        """Count *requests*, the oldest first; those that have finished are none."""
        status, waits, counts = self._status, self.waits, self._counts
        plain, last, runs = status.WAITING, status.PREEMPTED, status.RUNNING
        alike, fast = self._loras is None and self.holders_stop == self.stop, False
        for request in requests:
            found = request.status
            # Most of a long queue: not listed, not the first of its reason.
            if found is plain and fast and request.request_id not in waits:
                counts[self.stop] += 1
            elif found is runs:
                self._runs += 1
                if len(self.running) < ROWS_MAX:
                    self.running.append((request, 0, self._since(request)))
            elif found <= last:
                reason = self._reason(request, found)
                counts[reason] = counts.get(reason, 0) + 1
                if len(self.waiting) < ROWS_MAX:
                    self.waiting.append((request, reason, self._since(request)))
                # Of those that were not preempted the first is the oldest.
                if found is last or reason not in self._oldest:
                    since = self._since(request, preempted=found is last)
                    self._oldest[reason] = min(since, self._oldest.get(reason, since))
                fast = alike and len(self.waiting) == ROWS_MAX and self.stop in self._oldest

    def _reason(self, request: Any, found: Any) -> int:
        """Return why a request that waits does; by its status first, as vLLM asks."""
        status, wait = self._status, self.waits.get(request.request_id)
        if found is status.WAITING_FOR_STREAMING_REQ:
            return c.QUEUE_REASON_STREAMING_INPUT
        if found is status.WAITING_FOR_REMOTE_KVS:
            if request.request_id not in self.recved:
                return c.QUEUE_REASON_REMOTE_KV
        elif found is status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            if not _grammar_done(request):
                return c.QUEUE_REASON_GRAMMAR
        elif wait is not None and wait.reason != c.DEFERRAL_REASON_GRAMMAR:
            return _OF_DEFERRAL.get(wait.reason, c.QUEUE_REASON_OTHER)
        stop = self.holders_stop if request.num_computed_tokens > 0 else self.stop
        if stop in _BEFORE_LORA or self._loras is None:
            return stop
        lora = request.lora_request
        return c.QUEUE_REASON_LORA_SLOTS if lora is not None and lora.lora_int_id not in self._loras else stop

    def _since(self, request: Any, *, preempted: bool = False) -> int:
        record = self._observer.record(request.request_id)
        if record is None:
            return int(request.arrival_time * NANOS)
        return (record.preempted_ns if preempted else 0) or record.arrival_ns

    def fill(self, queue: SchedulerQueue) -> None:
        """Add the counts."""
        queue.running = self._runs
        for reason, count in sorted(self._counts.items()):
            queue.waiting.add(
                reason=cast("QueueReason", reason),
                count=count,
                oldest_start_time_unix_nano=self._oldest[reason],
            )


# vLLM ends its look for these before it comes to a request's adapter.
_BEFORE_LORA: Final = frozenset({c.QUEUE_REASON_PAUSED, c.QUEUE_REASON_RUNNING_LIMIT})


def _grammar_done(request: Any) -> bool:
    """Return whether a request's grammar is there; its status tells only once vLLM has looked. Unknown is no."""
    wanted = request.structured_output_request
    # Not the property: it changes the request.
    grammar = getattr(wanted, "_grammar", None)
    return grammar is not None and (not isinstance(grammar, Future) or grammar.done())
