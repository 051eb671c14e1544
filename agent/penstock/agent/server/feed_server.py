"""The port of the feed for routers: ``GET /v1/peers`` as JSON, or as server-sent events.

The document is made at most once a second whatever the number of readers, only while somebody reads; one that takes long
to make, such as where agents hang, rests for up to five. All get the same bytes; who does not take them is cut off.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from penstock.agent.errors import AccessError, PenstockError, StateError
from penstock.agent.server.addresses import TcpAddress
from penstock.agent.server.http_server import Connections, bind, bind_reason, quiet_logger
from penstock.agent.server.tls import HttpsCertificates, names_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp.typedefs import Handler
    from penstock.agent.server.options import FeedSettings

_log = structlog.get_logger(__name__)

PATH: Final = "/v1/peers"
MAX_CONNECTIONS: Final = 1_000
"""Maximum connections that ask, and as many that follow."""

# From a connection to its last byte; the last seconds begin no request more.
_CONNECTION_SECONDS: Final = 90.0
_LAST_SECONDS: Final = 30.0
_MAX_REQUEST_BYTES: Final = 1024
# What a reader that is slow has waiting in this process is about this much.
_SLICE_BYTES: Final = 64 << 10
_SHARE_OF_TIME: Final = 5
_LEAST_SLEEP: Final = 0.01
_NOT_MODIFIED, _FORBIDDEN, _UNAVAILABLE = 304, 403, 503
_MAX_NAME: Final = 256
_STREAM: Final = "text/event-stream"
_logger = quiet_logger("penstock.agent.server.feed_server")


class Pace(NamedTuple):
    """Seconds.

    Attributes:
        least: between two documents.
        most: between two of which each takes long to make.
        comment: of silence before a stream has a line that says nothing.
        write: that a reader has for a response or an event.

    """

    least: float = 1.0
    most: float = 5.0
    comment: float = 15.0
    write: float = 10.0


class FeedContent(NamedTuple):
    """A document.

    Attributes:
        body: JSON on one line.
        identity: the same without what changes each time: equal for documents that say the same.

    """

    body: bytes
    identity: bytes


class _Document(NamedTuple):
    body: bytes
    etag: str


class _Cache:
    """The newest document, made when it is asked for.

    Attributes:
        made: when it was made or found to be the same, by the monotonic clock.

    """

    def __init__(self, source: Callable[[], Awaitable[FeedContent]], pace: Pace) -> None:
        self._source = source
        self._pace = pace
        self._document: _Document | None = None
        self._problem = ""
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None
        self.made = 0.0

    async def document(self) -> _Document:
        """Return it; all that ask while one is made get that one.

        Raises:
            StateError: it cannot be made now.

        """
        if self.wait() <= 0:
            if self._task is None:
                self._task = asyncio.create_task(self._make())
            await asyncio.shield(self._task)
        if self._document is None:
            raise StateError(self._problem)
        return self._document

    def wait(self) -> float:
        """Return the seconds until the next one is made if it is asked for."""
        return self._next - time.monotonic()

    async def _make(self) -> None:
        begun = time.monotonic()
        try:
            content = await self._source()
        except PenstockError as error:
            # What was so before is not known to be so now.
            self._document, self._problem = None, str(error)
        except Exception:  # noqa: BLE001  (readers get a sentence, and the next one may be made)
            _log.exception("the feed for routers cannot be made; please report it")
            self._document, self._problem = None, "a bug; the log has more"
        else:
            etag = f'"{hashlib.sha256(content.identity).hexdigest()[:32]}"'
            self.made = time.monotonic()
            if self._document is None or self._document.etag != etag:
                # One that says the same stays byte for byte: so its ETag is a strong one.
                self._document = _Document(content.body, etag)
        finally:
            now = time.monotonic()
            self._next = now + max(
                self._pace.least, min(self._pace.most, (_SHARE_OF_TIME - 1) * (now - begun))
            )
            self._task = None

    async def close(self) -> None:
        """Give up what is being made."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


class FeedServer:
    """Serves the feed of an agent or of a relay.

    Args:
        source: makes the document. A PenstockError becomes 503.

    Attributes:
        address: the real one, once :meth:`start` has returned.

    """

    def __init__(
        self, settings: FeedSettings, source: Callable[[], Awaitable[FeedContent]], pace: Pace | None = None
    ) -> None:
        """Read the certificates.

        Raises:
            ConfigError: one cannot be used.

        """
        self.address = settings.address
        self._pace = Pace() if pace is None else pace
        self._cache = _Cache(source, self._pace)
        self._allow = None if settings.tls is None else settings.tls.allow
        self._certificates = None if settings.tls is None else HttpsCertificates(settings.tls)
        self._streams = 0
        self._following: asyncio.Task[None] | None = None
        # Set, and replaced, whenever there is another document, or none.
        self._changed = asyncio.Event()
        self._stopping = False
        application = web.Application(client_max_size=_MAX_REQUEST_BYTES, middlewares=[self._each])
        application.add_routes([web.get(PATH, self._peers)])
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            logger=_logger,
            lingering_time=0.0,
            keepalive_timeout=_LAST_SECONDS,
        )
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where the document is."""
        return f"{'http' if self._certificates is None else 'https'}://{self.address}{PATH}"

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            StateError: the address cannot be bound.

        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101  (there is one after the set-up)
        tls = None if self._certificates is None else self._certificates.context
        self._connections = Connections(server, MAX_CONNECTIONS, _CONNECTION_SECONDS, tls)
        try:
            self._server = await bind(self._connections, self.address, MAX_CONNECTIONS)
        except OSError as error:
            await self._runner.cleanup()
            raise StateError(
                f"--feed {self.address} cannot be bound: {bind_reason(error)}; give another address, or off"
            ) from error
        self.address = TcpAddress(self.address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """End the streams, and stop serving."""
        self._stopping = True
        self._changed.set()
        if self._server is not None:
            self._server.close()
        if self._following is not None:
            self._following.cancel()
        await self._cache.close()
        await self._runner.cleanup()

    @web.middleware
    async def _each(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connections = self._connections
        assert connections is not None  # noqa: S101  (requests come after the start)
        connections.asked(request.transport)
        try:
            self._check(request)
            response = await handler(request)
        except AccessError as error:
            response = _refused(_FORBIDDEN, str(error))
        except PenstockError as error:
            response = _refused(_UNAVAILABLE, f"the state of peers is not known now: {error}")
        except web.HTTPException as error:
            response = _refused(error.status, f"{request.method} {request.path[:100]}: {error.reason}")
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        if not response.prepared and connections.left(request.transport) < _LAST_SECONDS:
            response.force_close()
        return response

    def _check(self, request: web.Request) -> None:
        """Check who asks.

        Raises:
            AccessError: it is not on the list, or a name points here from elsewhere: that is a page of another site.

        """
        if self._allow is not None:
            self._allow.admit(names_of(request.transport) or ())
        elif not _is_own_host(request.headers.get("Host", "")):
            raise AccessError(
                f"the feed is not served under the name {request.headers.get('Host', '')[:_MAX_NAME]!r}; "
                "ask for it by localhost or by its address"
            )

    async def _peers(self, request: web.Request) -> web.StreamResponse:
        if _STREAM in request.headers.get("Accept", "") and request.method == "GET":
            return await self._stream(request)
        document = await self._cache.document()
        headers = {
            "ETag": document.etag,
            "Cache-Control": "no-cache",
            "Age": str(max(0, int(time.monotonic() - self._cache.made))),
            "Content-Type": "application/json",
        }
        if document.etag in _etags(request.headers.get("If-None-Match", "")):
            del headers["Content-Type"]
            return web.Response(status=_NOT_MODIFIED, headers=headers)
        if request.method == "HEAD":
            return web.Response(body=document.body, headers=headers)
        response = web.StreamResponse(headers=headers)
        response.content_length = len(document.body)
        assert self._connections is not None  # noqa: S101  (as above)
        if self._connections.left(request.transport) < _LAST_SECONDS:
            response.force_close()
        await self._write(request, response, document.body)
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= MAX_CONNECTIONS:
            return _refused(
                _UNAVAILABLE, f"{MAX_CONNECTIONS} readers follow the feed; ask for it without events"
            )
        # A problem is an answer of its own, and not an end of the stream.
        await self._cache.document()
        response = web.StreamResponse(headers={"Content-Type": _STREAM, "Cache-Control": "no-store"})
        response.force_close()
        self._streams += 1
        assert self._connections is not None  # noqa: S101  (as above)
        self._connections.keep(request.transport)
        try:
            if self._following is None:
                self._following = asyncio.create_task(self._follow())
            await self._write(request, response, b"")
            async for message in self._messages(request.headers.get("Last-Event-ID", "")):
                await self._write(request, response, message)
        except ConnectionError:
            pass
        finally:
            self._streams -= 1
        return response

    async def _messages(self, sent: str) -> AsyncIterator[bytes]:
        """Yield what a stream has, after the document *sent*, until there is no document any more."""
        while not self._stopping:
            changed = self._changed
            try:
                document = await self._cache.document()
            except StateError as error:
                # Its reader comes back, and is told.
                yield f": {error}\n\n".encode()
                return
            if document.etag != sent:
                sent = document.etag
                yield b"event: peers\nid: %b\ndata: %b\n\n" % (sent.encode(), document.body)
            try:
                async with asyncio.timeout(self._pace.comment):
                    await changed.wait()
            except TimeoutError:
                yield b": nothing has changed\n\n"

    async def _follow(self) -> None:
        """Have documents made while somebody follows."""
        before: str | None = ""
        try:
            while self._streams:
                try:
                    etag: str | None = (await self._cache.document()).etag
                except StateError:
                    etag = None
                if etag != before:
                    before = etag
                    changed, self._changed = self._changed, asyncio.Event()
                    changed.set()
                await asyncio.sleep(max(_LEAST_SLEEP, self._cache.wait()))
        finally:
            self._following = None

    async def _write(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        """Send *data* in slices; one that does not take them in time is cut off.

        Raises:
            ConnectionError: it has gone, or was cut off.

        """
        try:
            async with asyncio.timeout(self._pace.write):
                if not response.prepared:
                    await response.prepare(request)
                view = memoryview(data)
                for begin in range(0, len(view), _SLICE_BYTES):
                    await response.write(view[begin : begin + _SLICE_BYTES])
        except TimeoutError:
            if isinstance(request.transport, asyncio.Transport):
                request.transport.abort()
            raise ConnectionAbortedError("it does not read") from None


def _etags(header: str) -> set[str]:
    """Return the ETags of If-None-Match, which compares weakly."""
    return {each.strip().removeprefix("W/") for each in header.split(",")}


def _refused(status: int, sentence: str) -> web.Response:
    body = json.dumps({"error": sentence}).encode()
    return web.Response(
        status=status, body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _is_own_host(host: str) -> bool:
    """Return whether a header Host is localhost or an address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
