"""Detectors of a scheduler that does not run what it has: no room for it, paused, steps without tokens, or no steps.

A loaded engine with a queue is none of these: as long as a token is scheduled now and then, its requests only wait for their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.sources import HOLDERS, blocks_by_holder, held_rows
from penstock.agent.stalls.stall import Stall, StallKind
from penstock.proto.names import label
from penstock.proto.v1 import snapshot_pb2 as snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.agent.stalls.process_state import EngineState, ProcessState
    from penstock.agent.stalls.stall import Limits
    from penstock.proto.v1.snapshot_pb2 import SchedulerQueue

_CAPACITY: Final = snapshots.QUEUE_REASON_CAPACITY
# What a request waits for that the scheduler itself does not hold up.
_ELSEWHERE: Final = frozenset(
    {
        snapshots.QUEUE_REASON_REMOTE_KV,
        snapshots.QUEUE_REASON_KV_LOOKUP,
        snapshots.QUEUE_REASON_ENCODER_CACHE,
        snapshots.QUEUE_REASON_GRAMMAR,
        snapshots.QUEUE_REASON_STREAMING_INPUT,
    }
)
# Of a client that has not sent its next input: vLLM takes no step for it.
_IDLE: Final = snapshots.QUEUE_REASON_STREAMING_INPUT
# Two looks of the engine at itself: one may fall between the end of a step and the begin of the next.
_LEAST_STILL: Final = 2


class _Waits(NamedTuple):
    """Requests that wait for one thing; *since*: when the oldest began to, nanoseconds, 0 for not known."""

    number: int = 0
    since: int = 0


def waits_of(queue: SchedulerQueue) -> Mapping[int, _Waits]:
    """Return the requests that wait by what they wait for."""
    found: dict[int, _Waits] = {}
    for row in queue.waiting:
        if row.count:
            before = found.get(row.reason, _Waits())
            starts = {before.since, row.oldest_start_time_unix_nano} - {0}
            found[row.reason] = _Waits(before.number + row.count, min(starts, default=0))
    return found


def standstills(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield why the scheduler of an engine runs nothing of what it has, if that is so; at most one reason."""
    core = engine.core
    queue = core.queue if core is not None else None
    if core is None or queue is None or not (queue.running or queue.waiting):
        return
    waits = waits_of(queue)
    if queue.pause:
        yield from _paused(engine, core, queue, waits, limits)
        return
    found = (
        *_no_capacity(engine, core, queue, waits, limits),
        *_tokenless(engine, core, queue, waits, limits),
        *_no_steps(engine, core, queue, waits, limits),
    )
    yield from found[:1]


def _paused(
    engine: EngineState,
    core: ProcessState,
    queue: SchedulerQueue,
    waits: Mapping[int, _Waits],
    limits: Limits,
) -> Iterator[Stall]:
    """Yield that requests wait for the end of a pause; those that run go on in a pause for new ones."""
    stopped = queue.running if queue.pause == snapshots.SCHEDULER_PAUSE_ALL else 0
    held_up = [each for reason, each in waits.items() if reason != _IDLE]
    waiting = sum(each.number for each in held_up)
    begun = queue.pause_start_time_unix_nano
    first = begun if stopped else max(begun, min((each.since for each in held_up if each.since), default=0))
    waited = core.age(first)
    if begun and stopped + waiting and waited >= limits.scheduler_pause:
        who = _who(stopped, waiting, "runs", "run", "waits", "wait")
        was = _who(stopped, waiting, "ran", "ran", "waited", "waited")
        paused = core.age(begun)
        yield Stall(
            StallKind.SCHEDULER_PAUSED,
            stopped + waiting,
            engine.now - waited,
            f"vLLM's scheduler has been paused for {paused:.0f} s (sleep, or an update of weights): {who} until it resumes",
            past=f"vLLM's scheduler was paused for {paused:.0f} s: {was} meanwhile",
        )


def _no_capacity(
    engine: EngineState,
    core: ProcessState,
    queue: SchedulerQueue,
    waits: Mapping[int, _Waits],
    limits: Limits,
) -> Iterator[Stall]:
    """Yield that nothing runs as others than running requests have the KV blocks."""
    waiting, history = waits.get(_CAPACITY), core.history.scheduler
    if waiting is None or queue.running or history.still < _LEAST_STILL:
        return
    idle = core.age(max(queue.last_step_time_unix_nano, waiting.since, history.moved))
    used = max(0, queue.total_blocks - queue.free_blocks)
    reported = (process.snapshot for process in engine.processes if process.snapshot is not None)
    holders = blocks_by_holder(row for snapshot in reported for row in held_rows(snapshot))
    loads = holders.get(snapshots.BLOCK_HOLDER_LOAD, 0)
    limit = limits.capacity_loads if loads and 2 * loads >= used else limits.capacity
    if idle >= limit:
        free = f", {queue.free_blocks} of {queue.total_blocks} are free" if queue.total_blocks else ""
        yield Stall(
            StallKind.NO_CAPACITY,
            waiting.number,
            engine.now - idle,
            f"nothing runs: {_count(waiting.number, 'waits', 'wait')} for KV blocks{free}; "
            f"{_holding(holders, used, queue.total_blocks, 'hold')}",
            past=f"nothing ran: {_count(waiting.number, 'waited', 'waited')} for KV blocks; "
            f"{_holding(holders, used, queue.total_blocks, 'held')}",
        )


def _holding(holders: Mapping[int, int], used: int, total: int, verb: str) -> str:
    """Return who holds the blocks that are not free; shared ones count once."""
    left, said = used, []
    for holder, blocks in holders.items():
        part = min(left, blocks)
        if part and total:
            left -= part
            said.append(f"{HOLDERS.get(holder, 'others')} {verb} {100 * part / total:.0f} % of the cache")
    if left and total:
        who = "who holds" if verb == "hold" else "who held"
        said.append(f"{who} {100 * left / total:.0f} % of it is not known")
    if not said and total:
        return "no other request has any" if verb == "hold" else "no other request had any"
    return ", ".join(said) or f"who {verb if verb == 'held' else 'holds'} them is not known"


def _tokenless(
    engine: EngineState,
    core: ProcessState,
    queue: SchedulerQueue,
    waits: Mapping[int, _Waits],
    limits: Limits,
) -> Iterator[Stall]:
    """Yield that steps go on without a token although a request is there that nothing else holds up."""
    history = core.history.scheduler
    if not queue.running and _CAPACITY in waits:
        return
    deferred = sum(row.count for row in core.snapshot.deferred) if core.snapshot is not None else 0
    elsewhere = sum(each.number for reason, each in waits.items() if reason in _ELSEWHERE)
    # What runs may be passed over, too: for an encoder's output.
    running = max(0, queue.running - max(0, deferred - elsewhere))
    able = [each for reason, each in waits.items() if reason not in _ELSEWHERE]
    waiting = sum(each.number for each in able)
    if not running + waiting or history.still < _LEAST_STILL:
        return
    first = 0 if running else min((each.since for each in able if each.since), default=0)
    idle = core.age(max(queue.last_step_time_unix_nano, history.moved, first))
    goes_on = history.emptied > 0 and core.age(history.emptied) < limits.tokenless / 2
    if goes_on and idle >= limits.tokenless:
        reasons = ", ".join(
            label(snapshots.QueueReason, each).replace("_", " ")
            for each in sorted(waits)
            if each not in _ELSEWHERE
        )
        of = f" (for: {reasons})" if reasons else ""
        yield Stall(
            StallKind.STEPS_WITHOUT_TOKENS,
            running + waiting,
            engine.now - idle,
            f"steps go on and have scheduled no token for {idle:.0f} s: {_who(running, waiting, 'runs', 'run', 'waits', 'wait')}{of}",
            past=f"steps went on and scheduled no token for {idle:.0f} s: "
            f"{_who(running, waiting, 'ran', 'ran', 'waited', 'waited')}{of}",
        )


def _no_steps(
    engine: EngineState,
    core: ProcessState,
    queue: SchedulerQueue,
    waits: Mapping[int, _Waits],
    limits: Limits,
) -> Iterator[Stall]:
    """Yield that no step begins although requests are there, and none is under way: vLLM does something else, or nothing."""
    history, progress = core.history.scheduler, core.progress
    held_up = [each for reason, each in waits.items() if reason != _IDLE]
    waiting = sum(each.number for each in held_up)
    if progress is None or progress.step_start_time_unix_nano or not queue.running + waiting:
        return
    first = 0 if queue.running else min((each.since for each in held_up if each.since), default=0)
    idle = core.age(max(queue.last_step_time_unix_nano, history.stepped, history.moved, first))
    if history.still >= _LEAST_STILL and idle >= limits.no_step:
        yield Stall(
            StallKind.NO_STEPS,
            queue.running + waiting,
            engine.now - idle,
            f"no step of the engine has begun for {idle:.0f} s, and none is under way: "
            f"{_who(queue.running, waiting, 'runs', 'run', 'waits', 'wait')}",
            past=f"no step of the engine began for {idle:.0f} s, and none was under way: "
            f"{_who(queue.running, waiting, 'ran', 'ran', 'waited', 'waited')}",
        )


def _count(number: int, verb: str, verbs: str) -> str:
    return f"{number} requests {verbs}" if number != 1 else f"1 request {verb}"


def _who(running: int, waiting: int, runs: str, run: str, waits: str, wait: str) -> str:
    said = [_count(running, runs, run)] if running else []
    said += [_count(waiting, waits, wait)] if waiting else []
    return ", ".join(said)
