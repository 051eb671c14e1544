"""Bounds around an asyncio protocol that has none: how many connections there are, and how long each may last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Connections:
    """A protocol factory for ``loop.create_server``.

    Connections above *most* are closed at once, and each is cut off *lifetime* seconds after it began, whatever it
    does: a client that sends a byte now and then holds nothing for long.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], most: int, lifetime: float) -> None:
        self._make = make
        self._most = most
        self._lifetime = lifetime
        self._open = 0

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Connection(self, self._make())

    def begin(self, transport: asyncio.Transport) -> asyncio.TimerHandle | None:
        """Note a connection; returns the timer of its end, None if it is one too many."""
        if self._open >= self._most:
            return None
        self._open += 1
        return asyncio.get_running_loop().call_later(self._lifetime, transport.abort)

    def end(self, timer: asyncio.TimerHandle) -> None:
        """Note that it has ended."""
        timer.cancel()
        self._open -= 1


class _Connection(asyncio.Protocol):
    """Hands everything on to *inner*, unless the connection is one too many."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (of a stream)
        self._timer = self._connections.begin(transport)
        if self._timer is None:
            transport.abort()
        else:
            self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._connections.end(self._timer)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._timer is not None else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
