"""OTLP over HTTP: differences from gRPC."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
from penstock.agent.traces.export.otlp_http import read_all


@asynccontextmanager
async def answer_in_two(go_on):
    """Serve an answer of four bytes, the last two when *go_on* is set; yields its body as the client reads it."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        await go_on.wait()
        writer.write(b"cd")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}") as response:
            yield response.content


async def test_an_answer_that_comes_in_pieces_is_read_whole():
    """An answer in two parts is read whole, so that the rejected spans of a partial success are counted."""
    go_on = asyncio.Event()
    async with answer_in_two(go_on) as content:
        reading = asyncio.ensure_future(read_all(content, 100))
        done, _ = await asyncio.wait({reading}, timeout=0.05)
        assert not done
        go_on.set()
        assert await reading == b"abcd"


async def test_an_answer_without_an_end_is_cut():
    """An endless answer is cut at the limit without waiting for more."""
    go_on = asyncio.Event()
    async with answer_in_two(go_on) as content:
        assert await read_all(content, 2) == b"ab"
        go_on.set()
