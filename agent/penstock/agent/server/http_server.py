"""The HTTP port: metrics, health, and whether engines can be ended.

One request a connection, which ends after 15 seconds in any case: Prometheus scrapes four times a minute, and a client
that dawdles holds nothing for long. Where there is no room left, the slowest client makes it: health is answered
beside any number of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from penstock.agent.errors import PenstockError, StateError
from penstock.agent.server.addresses import TcpAddress

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp.typedefs import Handler

    Render = Callable[[str], tuple[bytes, str]]

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

    def left(self, transport: asyncio.BaseTransport | None) -> float:
        """Return the seconds until a connection is cut off; infinity where it is kept, 0 once it has ended."""
        for timers in (self._waiting, self._asked):
            timer = timers.get(transport)  # type: ignore[call-overload]
            if timer is not None:
                return float(timer.when() - asyncio.get_running_loop().time())
        return 0.0 if transport is None or transport.is_closing() else math.inf

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


async def bind(connections: Connections, address: TcpAddress, backlog: int) -> asyncio.Server:
    """Serve *connections* at *address*.

    Raises:
        OSError: it cannot be bound; :func:`bind_reason` says why.

    """
    loop = asyncio.get_running_loop()
    return await loop.create_server(connections, address.host, address.port, backlog=backlog)


def bind_reason(error: OSError) -> str:
    """Return why an address cannot be bound."""
    return "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)


_OK, _NOT_FOUND, _UNAVAILABLE = 200, 404, 503
_RENDER_DEADLINE = 10.0
# From the connection to its last byte.
_CONNECTION_SECONDS = 15.0
_MAX_CONNECTIONS = 128
_MAX_BODY_BYTES = 1024


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Keep malformed requests out of the log: any client can send them, and gets a 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def quiet_logger(name: str) -> logging.Logger:
    """Return the logger of a server of HTTP, without a line for each malformed request."""
    logger = logging.getLogger(name)
    logger.addFilter(_worth_a_line)
    return logger


_logger = quiet_logger("penstock.agent.server.http_server")


class Drained(NamedTuple):
    """Whether engines can be ended.

    Attributes:
        drained: None where there is none of that name.
        lines: a sentence for each engine, or why there is none.

    """

    drained: bool | None
    lines: Sequence[str]


class HttpServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz``, and ``/drained`` where it is told how.

    Args:
        render: body and content type for an Accept header; runs on a thread. A PenstockError becomes 503.
        health: a sentence about what keeps the agent from working; empty while it works.
        readiness: likewise, for taking in engines.
        degraded: likewise, for all that it promises; it is ready all the same.
        drained: whether the engines of a name can be ended; empty for all. A PenstockError becomes 503.

    Attributes:
        address: the real one, once :meth:`start` has returned.

    """

    def __init__(
        self,
        address: TcpAddress,
        render: Render,
        health: Callable[[], str],
        readiness: Callable[[], str],
        degraded: Callable[[], str] = str,
        drained: Callable[[str], Awaitable[Drained]] | None = None,
    ) -> None:
        self.address = address
        self._render = render
        self._health = health
        self._readiness = readiness
        self._degraded = degraded
        self._drained_of = drained
        # One scrape at a time: a second one would only take the same text later.
        self._turn = asyncio.Lock()
        self._drained_turn = asyncio.Lock()
        # Not one of the loop's, which questions and backups may all have: a scrape then would wait for those.
        self._thread = ThreadPoolExecutor(1, "penstock-metrics")
        application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._one_request])
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        if drained is not None:
            application.add_routes([web.get("/drained", self._drained)])
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=1.0, logger=_logger, lingering_time=0.0
        )
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            StateError: the address cannot be bound.

        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101  (after the set-up there is one)
        self._connections = Connections(server, _MAX_CONNECTIONS, _CONNECTION_SECONDS)
        try:
            self._server = await bind(self._connections, self.address, _MAX_CONNECTIONS)
        except OSError as error:
            await self._runner.cleanup()
            raise StateError(f"--http {self.address} cannot be bound: {bind_reason(error)}") from error
        self.address = TcpAddress(self.address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @web.middleware
    async def _one_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._connections is not None:
            self._connections.asked(request.transport)
        response = await handler(request)
        response.force_close()
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        try:
            async with asyncio.timeout(_RENDER_DEADLINE):
                body, content_type = await self._render_alone(accept)
        except TimeoutError:
            return _answer(f"the metrics were not ready within {_RENDER_DEADLINE:g} s; scrape less often")
        except PenstockError as error:
            return _answer(str(error))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _render_alone(self, accept: str) -> tuple[bytes, str]:
        """Render on a thread; an abandoned one keeps its slot until it ends, so that threads do not accumulate."""
        await self._turn.acquire()
        rendering = asyncio.get_running_loop().run_in_executor(self._thread, self._render, accept)
        rendering.add_done_callback(self._rendered)
        return await asyncio.shield(rendering)

    def _rendered(self, rendering: asyncio.Future[tuple[bytes, str]]) -> None:
        self._turn.release()
        if not rendering.cancelled():
            rendering.exception()  # It was waited for, or was given up: in both cases its exception is read here only.

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._health())

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._health() or self._readiness()
        degraded = self._degraded()
        if not reason and degraded:
            return web.Response(text=f"degraded: {degraded}\n")
        return _answer(reason)

    async def _drained(self, request: web.Request) -> web.Response:
        assert self._drained_of is not None  # noqa: S101  (the route is there only then)
        try:
            async with self._drained_turn:
                found = await self._drained_of(request.query.get("engine", ""))
        except PenstockError as error:
            return _answer(str(error))
        status = _NOT_FOUND if found.drained is None else _OK if found.drained else _UNAVAILABLE
        return web.Response(status=status, text="".join(f"{each}\n" for each in found.lines))


def _answer(reason: str) -> web.Response:
    return web.Response(text="ok\n") if not reason else web.Response(status=_UNAVAILABLE, text=f"{reason}\n")
