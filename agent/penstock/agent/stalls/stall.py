"""One thing that should go on and does not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


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
