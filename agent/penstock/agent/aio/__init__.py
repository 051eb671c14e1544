"""Four small asyncio tools that the standard library lacks."""

from __future__ import annotations

from penstock.agent.aio.change_signal import ChangeSignal, Listeners
from penstock.agent.aio.daemon_thread import run_on_daemon_thread
from penstock.agent.aio.rate_limit import ByteSemaphore, TokenBucket
from penstock.agent.aio.shield import to_completion

__all__ = [
    "ByteSemaphore",
    "ChangeSignal",
    "Listeners",
    "TokenBucket",
    "run_on_daemon_thread",
    "to_completion",
]
