"""Runs one daemon until a signal ends it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from penstock.agent.aio import stop_event
from penstock.agent.daemon.daemon import Daemon
from penstock.agent.server.full_collections import short_full_collections

if TYPE_CHECKING:
    from penstock.agent.daemon.config import Config

_log = structlog.get_logger(__name__)

# While a thread computes, each step from thread to thread waits for so long; the interpreter's 5 ms would make the four
# steps of an acknowledgement, or those of a policy, as long as their budgets.
_SWITCH_SECONDS = 0.001


async def run(config: Config) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        PenstockError: it cannot start, or cannot continue; one sentence.

    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = stop_event()
    daemon = Daemon(config)
    starting = asyncio.ensure_future(daemon.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            daemon.fatal.add_done_callback(lambda _: stop.set())
            with short_full_collections():
                await stopping
            if daemon.fatal.done():
                raise daemon.fatal.result()
        _log.info("agent stopping")
    finally:
        stopping.cancel()
        starting.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await starting
        await daemon.stop()
    _log.info("agent stopped")
