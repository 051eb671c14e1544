"""Limits of connections whose TLS handshake has not begun yet."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

from penstock.agent.server.http_server import Connections

from tests.support.agent.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_connection_that_made_room_begins_no_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All come in one turn of the loop, so that the first ones end before their handshakes: only the last one's begins."""
    served = Authority(tmp_path / "pki").issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served.cert, served.key)
    loop = asyncio.get_running_loop()
    begun: list[asyncio.BaseTransport] = []
    start_tls = loop.start_tls

    async def noted(
        transport: asyncio.WriteTransport, *args: Any, **options: Any
    ) -> asyncio.Transport | None:
        begun.append(transport)
        return await start_tls(transport, *args, **options)

    monkeypatch.setattr(loop, "start_tls", noted)
    connections = Connections(asyncio.Protocol, 1, 60.0, context)
    server = await loop.create_server(connections, "127.0.0.1", 0)
    clients = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(5)]
    try:
        for client in clients[:-1]:
            client.setblocking(False)
            assert await asyncio.wait_for(_end(client), 60)
        assert len(begun) == 1
    finally:
        for client in clients:
            client.close()
        server.close()


async def _end(client: socket.socket) -> bool:
    """Return true when the server has closed a connection."""
    try:
        return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionError:
        return True
