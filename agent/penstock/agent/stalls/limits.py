"""How long something may not happen before it counts as a stall."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, unless the name says otherwise.

    Attributes:
        start_wait: that a request may wait before its transfer or a handshake begins.
        push_start_wait: the same where the peer pushes: its prefill is part of the wait, and no begin is reported.
        call: that a call into a connector may last.
        step: that a step of the engine may last; the first ones compile.
        thread: that a thread may be gone: an engine that ends goes sooner.
        silent: without a word of a worker while its EngineCore reports.
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

    start_wait: float = 30.0
    push_start_wait: float = 120.0
    call: float = 30.0
    step: float = 60.0
    thread: float = 10.0
    silent: float = 10.0
    behind: float = 30.0
    window: float = 300.0
    requests: int = 20
    share: float = 0.9
    share_kept: float = 0.75
    unloaded: int = 3
    idle: float = 60.0
    intervals: int = 2
    rebalance: float = 300.0
