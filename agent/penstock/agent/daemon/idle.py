"""What ``--on-fatal=idle`` does instead of an exit: nothing but say why."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError
from penstock.agent.server import HttpServer

if TYPE_CHECKING:
    from penstock.agent.server import TcpAddress

_log = structlog.get_logger(__name__)


async def idle(reason: str, http: TcpAddress | None) -> None:
    """Wait for SIGTERM or SIGINT; health and metrics answer 503 with *reason*, where the port can be had."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _log.critical("agent idle: it cannot start or go on; engines serve without it", reason=reason)

    def render(_accept: str) -> tuple[bytes, str]:
        raise StateError(reason)

    server = None if http is None else HttpServer(http, render, lambda: reason, str)
    try:
        if server is not None:
            await server.start()
    except StateError as error:
        _log.warning("health cannot be asked", error=str(error))
        server = None
    await stop.wait()
    if server is not None:
        await server.stop()
