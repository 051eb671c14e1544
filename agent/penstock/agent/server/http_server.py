"""The HTTP port: metrics and health.

One request a connection, which ends after 15 seconds in any case: Prometheus scrapes four times a minute, and a client
that dawdles holds nothing for long. Where there is no room left, the slowest client makes it: health is answered
beside any number of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from penstock.agent.errors import PenstockError, StateError
from penstock.agent.server.addresses import TcpAddress
from penstock.agent.server.http_limits import Connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler

    Render = Callable[[str], tuple[bytes, str]]

_UNAVAILABLE = 503
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


class HttpServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz``.

    Args:
        render: body and content type for an Accept header; runs on a thread. A PenstockError becomes 503.
        health: a sentence about what keeps the agent from working; empty while it works.
        readiness: likewise, for taking in engines.
        degraded: likewise, for all that it promises; it is ready all the same.

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
    ) -> None:
        self.address = address
        self._render = render
        self._health = health
        self._readiness = readiness
        self._degraded = degraded
        # One scrape at a time: a second one would only take the same text later.
        self._turn = asyncio.Lock()
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
            self._server = await asyncio.get_running_loop().create_server(
                self._connections,
                self.address.host,
                self.address.port,
                backlog=_MAX_CONNECTIONS,
            )
        except OSError as error:
            await self._runner.cleanup()
            reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
            raise StateError(f"--http {self.address} cannot be bound: {reason}") from error
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


def _answer(reason: str) -> web.Response:
    return web.Response(text="ok\n") if not reason else web.Response(status=_UNAVAILABLE, text=f"{reason}\n")
