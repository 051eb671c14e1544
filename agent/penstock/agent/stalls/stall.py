"""One thing that should go on and does not, after how long it counts, and those that are over while a diagnosis looks back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.agent import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.model import EngineKey


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, unless the name says otherwise.

    Attributes:
        start_wait: that a request may wait before its transfer or a handshake begins.
        push_start_wait: the same where the peer pushes: its prefill is part of the wait, and no begin is reported.
        call: that a call into a connector may last.
        step: that a step of the engine may last; the first ones compile.
        thread: that a thread may be gone: an engine that ends goes sooner.
        silent: without a word of a worker while its EngineCore reports and a step is under way.
        silent_idle: the same while none is.
        behind: that a worker's steps may stand still while those of its siblings go on.
        window: over which requests are compared.
        requests: the least number of requests in the window.
        share: of them without transfer parameters from which on the router is suspected ...
        share_kept: ... and below which it is not any more.
        unloaded: the least number of requests that loaded nothing.
        idle: without a step after which an engine counts as idle.
        intervals: number of EPLB's step intervals without a rebalance.
        rebalance: that one rebalance may last while steps go on.
        capacity: that nothing may run while requests wait for KV blocks.
        capacity_loads: the same where loads under way hold most of the blocks.
        scheduler_pause: that a request may wait in a scheduler that vLLM has paused.
        tokenless: that steps may schedule no token although a request could run.
        no_step: that no step may begin while requests wait or run.

    """

    start_wait: float = limits.START_SECONDS
    push_start_wait: float = limits.PUSH_START_SECONDS
    call: float = limits.CALL_SECONDS
    step: float = limits.STEP_SECONDS
    thread: float = limits.THREAD_SECONDS
    silent: float = limits.SILENT_SECONDS
    silent_idle: float = limits.SILENT_IDLE_SECONDS
    behind: float = limits.BEHIND_SECONDS
    window: float = limits.COUNTS_SECONDS
    requests: int = limits.BARE_ARRIVALS
    share: float = limits.BARE_SHARE
    share_kept: float = limits.BARE_SHARE_KEPT
    unloaded: int = limits.UNLOADED_COUNT
    idle: float = limits.IDLE_SECONDS
    intervals: int = limits.EPLB_INTERVALS
    rebalance: float = limits.EPLB_REBALANCE_SECONDS
    capacity: float = limits.CAPACITY_SECONDS
    capacity_loads: float = limits.CAPACITY_LOADS_SECONDS
    scheduler_pause: float = limits.SCHEDULER_PAUSE_SECONDS
    tokenless: float = limits.TOKENLESS_SECONDS
    no_step: float = limits.NO_STEP_SECONDS


# Ended stalls of one engine; above it, what ended first is forgotten.
_MOST_ENDED: Final = 16


class StallKind(StrEnum):
    """What does not happen."""

    LOAD_NOT_STARTED = "load_not_started"
    LOAD_MISSING = "load_missing"
    NO_TRANSFER_PARAMS = "no_transfer_params"
    REBALANCE_OVERDUE = "rebalance_overdue"
    REBALANCE_UNFINISHED = "rebalance_unfinished"
    CALL_STUCK = "call_stuck"
    STEP_STUCK = "step_stuck"
    THREAD_DEAD = "thread_dead"
    WORKER_SILENT = "worker_silent"
    NO_CAPACITY = "no_capacity"
    SCHEDULER_PAUSED = "scheduler_paused"
    STEPS_WITHOUT_TOKENS = "steps_without_tokens"
    NO_STEPS = "no_steps"


KINDS: Final = tuple(StallKind)


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall of one engine; one for each kind and peer.

    Attributes:
        count: requests, calls, threads or workers.
        since: when it began, seconds since the epoch by the agent's clock.
        sentence: what does not happen, for people.
        peer: empty where it concerns none.
        past: the sentence once it is over; empty where it may also end because it is not seen any more.
        until: when it ended, as *since*; 0 while it lasts.

    """

    kind: StallKind
    count: int
    since: float
    sentence: str
    peer: str = ""
    past: str = ""
    until: float = 0.0


class EndedStalls:
    """The newest of each engine, kind and peer. Of one thread; :attr:`found` may be read from any.

    Attributes:
        found: by engine, the oldest first; each in the past tense.

    """

    def __init__(self) -> None:
        self.found: Mapping[EngineKey, tuple[Stall, ...]] = {}

    def update(
        self,
        before: Mapping[EngineKey, tuple[Stall, ...]],
        present: Mapping[EngineKey, tuple[Stall, ...]],
        seen: Mapping[EngineKey, float],
        now: float,
    ) -> None:
        """Take in what has ended since the last look.

        Args:
            before: the stalls of the last look, by engine.
            present: those of this one.
            seen: until when each engine has told what it does, seconds of the agent's clock; 0 where that is not known now, as
                while it is away without a goodbye.
            now: likewise.

        """
        found: dict[EngineKey, tuple[Stall, ...]] = {}
        for key in self.found.keys() | before.keys():
            lasting = {_place(each) for each in present.get(key, ())}
            over = [
                replace(each, sentence=each.past, until=seen[key])
                for each in before.get(key, ())
                if _place(each) not in lasting and each.past and seen.get(key)
            ]
            newest = {_place(each): each for each in (*self.found.get(key, ()), *over)}
            kept = [
                each
                for place, each in newest.items()
                if place not in lasting
                and each.until - each.since >= limits.ENDED_STALL_LEAST_SECONDS
                and now - each.until < limits.ENDED_STALL_SECONDS
            ]
            if kept:
                found[key] = tuple(sorted(kept, key=lambda each: each.until)[-_MOST_ENDED:])
        self.found = found


def _place(stall: Stall) -> tuple[StallKind, str]:
    return stall.kind, stall.peer
