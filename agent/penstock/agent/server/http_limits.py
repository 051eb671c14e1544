"""Limits for an asyncio protocol: the number of connections, and the time of each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_log = structlog.get_logger(__name__)


class Connections:
    """A protocol factory for ``loop.create_server``.

    Each connection is cut off *lifetime* seconds after it began, whatever it does: a client that sends a byte now and
    then holds nothing for long. A new one always gets in. Where there are *most* already, it takes the place of the
    oldest that has not sent its request, or, if all have, of the oldest: a request that is sent and read at once is
    served beside any number of slow ones.

    With *tls* the handshake is made here and not by the loop's server, so that connections are counted from their
    first byte on: a handshake is a connection that has not sent its request, and has *lifetime* for itself.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        most: int,
        lifetime: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._make = make
        self._most = most
        self._lifetime = lifetime
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        # Both in the order of age.
        self._waiting: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._asked: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        connection = _Connection(self, self._make())
        return connection if self._tls is None else _Handshake(self, connection)

    def begin(self, transport: asyncio.Transport) -> None:
        """Count a connection; close an older one beyond the limit."""
        if len(self._waiting) + len(self._asked) >= self._most:
            oldest = next(iter(self._waiting or self._asked))
            self.end(oldest)
            oldest.abort()
        timer = asyncio.get_running_loop().call_later(self._lifetime, transport.abort)
        self._waiting[transport] = timer

    def shake_hands(self, transport: asyncio.Transport, connection: _Connection) -> None:
        """Count a connection, and make *connection* its protocol once it is encrypted."""
        self.begin(transport)
        # What the client has sent already is for the handshake.
        transport.pause_reading()
        task = asyncio.ensure_future(self._encrypt(transport, connection))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _encrypt(self, transport: asyncio.Transport, connection: _Connection) -> None:
        assert self._tls is not None  # noqa: S101  (set wherever there are handshakes)
        secured = None
        try:
            # One that made room in the meantime would begin a handshake that nothing ends.
            if not transport.is_closing():
                secured = await asyncio.get_running_loop().start_tls(
                    transport, connection, self._tls, server_side=True
                )
        except Exception as error:  # noqa: BLE001  (the client has gone, or its certificate is invalid or odd)
            _log.debug("no TLS handshake", reason=str(error))
        finally:
            self.end(transport)
        if secured is None or transport.is_closing():
            transport.abort()
        else:
            connection.connection_made(secured)

    def asked(self, transport: asyncio.BaseTransport | None) -> None:
        """Stop the deadline of a connection: its request has arrived."""
        timer = self._waiting.pop(transport, None)  # type: ignore[call-overload]
        if timer is not None:
            self._asked[transport] = timer  # type: ignore[index]

    def keep(self, transport: asyncio.BaseTransport | None) -> None:
        """Let a connection live on without a deadline; its owner bounds the number of those."""
        self.end(transport)  # type: ignore[arg-type]

    def end(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended. Idempotent."""
        timer = self._waiting.pop(transport, None) or self._asked.pop(transport, None)
        if timer is not None:
            timer.cancel()


class _Connection(asyncio.Protocol):
    """Forwards everything to *inner*; what comes before the connection is made, as after a TLS handshake, follows it."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (of a stream)
        self._transport = transport
        self._connections.begin(transport)
        self._inner.connection_made(transport)
        for data in self._early:
            self._inner.data_received(data)
        self._early.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.end(self._transport)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._transport is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class _Handshake(asyncio.Protocol):
    """The protocol of a connection until its handshake begins."""

    def __init__(self, connections: Connections, connection: _Connection) -> None:
        self._connections = connections
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (of a stream)
        self._connections.shake_hands(transport, self._connection)
