"""Calls of the admin service that no one would want: cut at any moment, half sent, never read."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import grpc
from penstock.agent.answers import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4
_END_STREAM, _END_HEADERS = 1, 4
_CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header(name: str, value: str) -> bytes:
    """Return a header as a literal that is not indexed; of less than 127 bytes each."""
    parts = (name.encode(), value.encode())
    return b"\0" + b"".join(bytes([len(part)]) + part for part in parts)


def opened(method: str, stream: int = 1) -> bytes:
    """Return the frames that open a call of *method*, up to its headers."""
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path_of(method)),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    block = b"".join(_header(*each) for each in headers)
    return frame(_HEADERS, _END_HEADERS, stream, block)


def message(body: bytes, stream: int = 1, *, last: bool = True) -> bytes:
    """Return the frame of one message."""
    return frame(_DATA, _END_STREAM if last else 0, stream, b"\0" + struct.pack(">I", len(body)) + body)


def reset(stream: int = 1) -> bytes:
    """Return the frame that ends a call at once."""
    return frame(_RESET, 0, stream, struct.pack(">I", _CANCEL))


def begun() -> bytes:
    """Return how a client begins a connection."""
    return PREFACE + frame(_SETTINGS, 0, 0)


def raw_call(path: str, pieces: Iterable[bytes], *, read: int = 0) -> None:
    """Connect to the socket at *path*, send *pieces*, read *read* bytes at most, and hang up."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        for piece in pieces:
            connection.sendall(piece)
        if read:
            connection.recv(read)


async def cut_calls(address: str, calls: Sequence[tuple[str, bytes, bool]], delays: Iterable[float]) -> None:
    """Make each of *calls* (method, request, whether the answer is a stream) and cut it after each of *delays*, in seconds.

    One third by its deadline, one by its cancellation, one by hanging up with all of them under way.
    """
    for delay in delays:
        channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        tasks = [
            asyncio.ensure_future(_called(channel, *call, deadline=delay if turn % 3 == 0 else 60.0))
            for turn, call in enumerate(calls)
        ]
        await asyncio.wait(tasks, timeout=delay)
        for task in tasks[1::3]:
            task.cancel()
        await asyncio.wait(tasks[0::3] + tasks[1::3], timeout=5)
        # The rest ends with the connection.
        await channel.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _called(
    channel: grpc.aio.Channel, method: str, body: bytes, streams: bool, *, deadline: float
) -> None:
    with suppress(grpc.RpcError):
        if streams:
            many: Any = channel.unary_stream(path_of(method))
            async for _ in many(body, timeout=deadline):
                pass
        else:
            one: Any = channel.unary_unary(path_of(method))
            await one(body, timeout=deadline)
