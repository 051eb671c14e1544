"""Four small asyncio tools that the standard library lacks."""

from __future__ import annotations

from penstock.agent.aio.change_signal import Listeners, Notice
from penstock.agent.aio.daemon_thread import aside
from penstock.agent.aio.rate_limit import Bucket, Hand
from penstock.agent.aio.shield import to_completion

__all__ = [
    "Bucket",
    "Hand",
    "Listeners",
    "Notice",
    "aside",
    "to_completion",
]
