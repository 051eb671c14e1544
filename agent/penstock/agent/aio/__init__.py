"""Small tools for the loop, and for threads beside it, that the standard library lacks."""

from __future__ import annotations

from penstock.agent.aio.change_signal import ChangeSignal, Listeners
from penstock.agent.aio.rate_limit import ByteSemaphore, TokenBucket
from penstock.agent.aio.tasks import is_cancelled, raise_if_cancelled, stop_event, to_completion
from penstock.agent.aio.threads import ThreadYield, run_on_daemon_thread

__all__ = [
    "ByteSemaphore",
    "ChangeSignal",
    "Listeners",
    "ThreadYield",
    "TokenBucket",
    "is_cancelled",
    "raise_if_cancelled",
    "run_on_daemon_thread",
    "stop_event",
    "to_completion",
]
