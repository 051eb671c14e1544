"""A peer that speaks ZeroMQ's protocol (ZMTP 3.0) by hand: libzmq itself would not send a message that has no end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4


def shake_hands(connection: socket.socket, kind: str) -> None:
    """Be a socket of that kind, whichever side called the other."""
    name = kind.encode()
    body = b"\x05READY\x0bSocket-Type" + len(name).to_bytes(4, "big") + name + b"\x08Identity" + bytes(4)
    connection.sendall(_GREETING + bytes([_COMMAND, len(body)]) + body)
    _exactly(connection, len(_GREETING))
    _, size = _exactly(connection, 2)
    _exactly(connection, size)


def frame(body: bytes, *, more: bool = False) -> bytes:
    """Return a message's frame."""
    if len(body) < 256:
        return bytes([_MORE * more, len(body)]) + body
    return bytes([_MORE * more | _LONG]) + len(body).to_bytes(8, "big") + body


def send_endlessly(connection: socket.socket, size: int, most: int) -> int:
    """Send a message of frames of *size* bytes without a last one; return how much went out before the connection broke, or *most*."""
    one = frame(bytes(size), more=True)
    block = one * max((64 << 10) // len(one), 1)
    sent = 0
    try:
        while sent < most:
            connection.sendall(block)
            sent += len(block)
    except OSError:
        return sent
    return sent


def resident(pid: int) -> int:
    """Return the highest memory that the process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError(pid)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        assert more, "the other side closed the connection in the handshake"
        found += more
    return found
