"""One thing that should go on and does not; and those that are over, for as long as a diagnosis looks back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.agent import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.model import EngineKey


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
