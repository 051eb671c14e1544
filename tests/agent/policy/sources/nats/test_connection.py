"""A connection to NATS, with a real nats-server: what it leaves behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.agent.policy.sources.nats.connection import NatsAccess, connected

from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_client_that_closes_itself_is_closed_at_the_end(tmp_path: Path) -> None:
    """After an error it does so on a task of its own, and the loop may end before that has closed the socket."""
    server = NatsServer(tmp_path / "nats").start()
    try:
        async with connected(NatsAccess((server.url,)), 0, asyncio.Event()) as client:
            await client._process_err("an error of the server")
            await asyncio.sleep(0)
            assert client.is_closed
            assert client._transport is not None
            socket = client._transport._io_writer.transport
            assert not socket.is_closing()
        assert socket.is_closing()
    finally:
        server.kill()
