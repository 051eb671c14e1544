"""How long something may not happen before it counts as a stall."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.agent import limits


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
