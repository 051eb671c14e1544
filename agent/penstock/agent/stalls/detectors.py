"""Detectors of what stands still: loads, calls, steps, threads, rebalances, workers, and routers that send no parameters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent.badness import NO_SERVERS
from penstock.agent.stalls.stall import Stall, StallKind
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.stalls.process_state import EngineState, ProcessState
    from penstock.agent.stalls.stall import Limits
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, EplbFacts, EplbProgress

TAKES_PARAMS: Final = frozenset(
    {"MooncakeConnector", "MoRIIOConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"}
)
"""Connectors that load only what ``kv_transfer_params`` name."""
_PUSHES: Final = "NixlPushConnector"


def loads_not_started(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield the peers from which requests wait for KV, without a transfer or a handshake that was begun for them."""
    core, facts = engine.core, engine.facts
    if core is None or core.progress is None:
        return
    pushed = facts is not None and facts.kv_connector == _PUSHES
    limit = limits.push_start_wait if pushed else limits.start_wait
    # All ranks wait for the handshakes of the same requests.
    handshaking: defaultdict[str, int] = defaultdict(int)
    for _, progress in engine.reporting:
        for row in progress.handshaking:
            handshaking[row.peer.address] = max(handshaking[row.peer.address], row.count)
    for row in core.progress.unstarted:
        count = row.count - handshaking[row.peer.address]
        waited = core.age(row.oldest_start_time_unix_nano)
        if count > 0 and waited >= limit:
            peer = row.peer.address or "unknown"
            yield Stall(
                StallKind.LOAD_NOT_STARTED,
                count,
                engine.now - waited,
                f"{_requests(count)} for KV from {NO_SERVERS.get(peer, peer)}, the oldest for {waited:.0f} s, and no transfer "
                "and no handshake has been begun",
                peer,
                f"{count} request{'s' if count > 1 else ''} waited for KV from {NO_SERVERS.get(peer, peer)} for up to {waited:.0f} s, and no "
                "transfer and no handshake was begun",
            )


def loads_missing(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that requests were to load their prompt's KV, and none of it was loaded although nothing failed."""
    core = engine.core
    if core is None or core.progress is None:
        return
    first, last = core.history.first, core.history.last
    count, asked = last.unloaded - first.unloaded, last.to_load - first.to_load
    if count >= limits.unloaded:
        yield Stall(
            StallKind.LOAD_MISSING,
            count,
            first.time,
            f"in the last {_minutes(last.time - first.time)}, {count} of {max(asked, count)} requests should have loaded "
            "KV but no load was started; their prompts were computed on this engine",
        )


def no_transfer_params(engine: EngineState, limits: Limits, *, present: bool) -> Iterator[Stall]:
    """Yield that the requests of an engine that is to load KV name none; *present*: it has been so."""
    core, facts = engine.core, engine.facts
    if core is None or core.progress is None or facts is None or not facts.kv_connector:
        return
    first, last = core.history.first, core.history.last
    requests = last.requests - first.requests
    if requests < limits.requests or not _expects_params(facts, last.to_load):
        return
    without = requests - (last.to_load - first.to_load)
    if without >= requests * (limits.share_kept if present else limits.share):
        yield Stall(
            StallKind.NO_TRANSFER_PARAMS,
            without,
            first.time,
            f"{without} of {requests} requests of the last {_minutes(last.time - first.time)} came without "
            "kv_transfer_params that name KV to load; their prompts are computed here",
        )


def _expects_params(facts: EngineFacts, to_load: int) -> bool:
    """Return whether requests with KV to load are expected: some have come, or a person has said that it decodes."""
    told = facts.role == common.ROLE_DECODE and not facts.role_guessed
    return to_load > 0 or (told and facts.kv_connector in TAKES_PARAMS)


def _requests(count: int) -> str:
    return f"{count} requests wait" if count > 1 else "1 request waits"


_IN_MINUTES: Final = 90


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= _IN_MINUTES else f"{seconds:.0f} s"


# Of a worker, now and in the past.
_SILENT: Final = ("has reported nothing", "reported nothing")
_STANDS: Final = ("has begun no step, while others go on", "began no step, while others went on")


def calls_stuck(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that calls of vLLM into a connector do not return."""
    found = [
        (process.age(call.start_time_unix_nano), process, call)
        for process, progress in engine.reporting
        for call in progress.calls
    ]
    stuck = [each for each in found if each[0] >= limits.call]
    if stuck:
        lasted, process, call = max(stuck, key=lambda each: each[0])
        yield Stall(
            StallKind.CALL_STUCK,
            len(stuck),
            engine.now - lasted,
            f"{process.name} has been in {call.connector}.{call.name} for {lasted:.0f} s{_more(len(stuck), 'call')}",
            past=f"{process.name} was in {call.connector}.{call.name} for {lasted:.0f} s{_more(len(stuck), 'call')}",
        )


def step_stuck(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that a step of the engine does not end."""
    core = engine.core
    if core is None or core.progress is None:
        return
    lasted = core.age(core.progress.step_start_time_unix_nano)
    if lasted >= limits.step:
        yield Stall(
            StallKind.STEP_STUCK,
            1,
            engine.now - lasted,
            f"no step of the engine has ended for {lasted:.0f} s",
            past=f"no step of the engine ended for {lasted:.0f} s",
        )


def threads_dead(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that threads of a connector have ended in a process that goes on."""
    found = [
        (process.age(thread.ended_time_unix_nano), process, thread.name)
        for process, progress in engine.reporting
        for thread in progress.threads
        if not thread.alive
    ]
    dead = [each for each in found if each[0] >= limits.thread]
    if dead:
        longest = max(dead, key=lambda each: each[0])[0]
        names = ", ".join(sorted({f"{name} of {process.name}" for _, process, name in dead}))
        yield Stall(
            StallKind.THREAD_DEAD,
            len(dead),
            engine.now - longest,
            f"thread {names} ended {longest:.0f} s ago and the process goes on without it",
            past=f"thread {names} had ended and the process went on without it",
        )


def rebalances(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that EPLB has begun no rebalance for several intervals, or does not end one, while steps go on."""
    for process, progress in engine.reporting:
        snapshot = process.snapshot
        if snapshot is None or not snapshot.eplb.step_interval:
            continue
        for row in progress.eplb:
            if process.history.eplb_standing < limits.idle and process.history.first.eplb_steps != row.steps:
                yield from _rebalance(engine, process, snapshot.eplb, row, limits)


def _rebalance(
    engine: EngineState, process: ProcessState, facts: EplbFacts, row: EplbProgress, limits: Limits
) -> Iterator[Stall]:
    steps = row.steps - row.last_begun_step
    lasted = process.age(row.open_start_time_unix_nano)
    if lasted >= limits.rebalance and steps > facts.step_interval:
        yield Stall(
            StallKind.REBALANCE_UNFINISHED,
            1,
            engine.now - lasted,
            f"rank {row.rank} has not ended a rebalance of experts that began {lasted:.0f} s and {steps} steps ago",
        )
    elif not lasted and steps > limits.intervals * facts.step_interval:
        yield Stall(
            StallKind.REBALANCE_OVERDUE,
            1,
            engine.now,
            f"rank {row.rank} has begun no rebalance of experts for {steps} steps; one is due every "
            f"{facts.step_interval}",
        )


def workers_silent(engine: EngineState, limits: Limits) -> Iterator[Stall]:
    """Yield that workers say nothing while their EngineCore does, or stand still while their siblings go on."""
    core = engine.core
    if core is None or engine.silence(core) >= limits.silent / 2:
        return
    workers = [each for each in engine.processes if _is_of(each, core)]
    # No step ends without all workers: one that is silent while steps go on has only a late snapshot.
    steps_go_on = (
        core.progress is not None
        and core.history.last.steps > 0
        and core.history.standing < limits.silent / 2
    )
    silent = [
        (engine.silence(each), each, _SILENT)
        for each in workers
        if not each.live.said_goodbye and not steps_go_on
    ]
    behind = [
        (each.history.standing, each, _STANDS)
        for each in workers
        if each.progress is not None and _falls_behind(each, workers, limits)
    ]
    found = [each for each in silent if each[0] >= _least_silence(core, limits)] + behind
    if found:
        lasted, process, (what, past) = max(found, key=lambda each: each[0])
        count = len({id(each[1]) for each in found})
        yield Stall(
            StallKind.WORKER_SILENT,
            count,
            engine.now - lasted,
            f"{process.name} {what} for {lasted:.0f} s{_more(count, 'worker')}",
            past=f"{process.name} {past} for {lasted:.0f} s{_more(count, 'worker')}",
        )


def _least_silence(core: ProcessState, limits: Limits) -> float:
    """Return how long a worker may say nothing: on a busy machine one that nobody waits for may only be late."""
    idle = core.progress is not None and not core.progress.step_start_time_unix_nano
    return limits.silent_idle if idle else limits.silent


def _is_of(process: ProcessState, core: ProcessState) -> bool:
    """Return whether a worker belongs to this life of its engine, and not to one before."""
    source = process.live.source
    return source.process == "worker" and source.start_time_unix_nano >= core.live.source.start_time_unix_nano


def _falls_behind(process: ProcessState, workers: list[ProcessState], limits: Limits) -> bool:
    """Return whether others have taken two steps or more since the worker's last one."""
    last, standing = process.history.last, process.history.standing
    return (
        last.steps > 0
        and standing >= limits.behind
        and any(
            each.history.last.steps > last.steps + 1 and each.history.steps_since(last.time - standing) > 1
            for each in workers
            if each.progress is not None
        )
    )


def _more(count: int, noun: str) -> str:
    others = count - 1
    return f", and {others} more {noun}{'s' if others > 1 else ''}" if others else ""
