"""The page's own port: its files, the stream, questions and writes; and what it says of its server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web
from penstock.agent.errors import AccessError, StateError
from penstock.agent.page import access
from penstock.agent.page.details import WRITES, ask_detail, json_object
from penstock.agent.page.files import read_files, takes_gzip
from penstock.agent.page.live import MAX_ID_CHARACTERS, MAX_SECONDS, Hub, message, read
from penstock.agent.page.wire import ANSWER_SECONDS, AdminCalls, AnswerError, encode, plain
from penstock.agent.server import TcpAddress
from penstock.agent.server.http_server import Connections, bind, bind_reason, quiet_logger
from penstock.agent.server.page_tokens import MAX_TOKEN_CHARACTERS, PageTokens, ServedPage
from penstock.agent.server.tls import HttpsCertificates, names_of
from penstock.agent.views.command_lines import PROGRAM, hinted
from penstock.proto import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler
    from penstock.agent.page.live import Positions
    from penstock.agent.server import Caller
    from penstock.agent.server.options import PageSettings
    from penstock.proto.v1.admin_pb2_grpc import AdminServicer

_log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 1 << 20
"""Maximum bytes of a write."""
MAX_QUESTIONS = 4
"""Questions that are answered at a time."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "penstock",
}
_MAX_CONNECTIONS = 128
_CONNECTION_SECONDS = 30.0
_WRITE_SECONDS = 30.0
_LAST_WORD_SECONDS = 1.0
_MAX_SECONDS_DIGITS = 6
_MAX_SENTENCE = 4_000

INDEX = "index.html"
"""The document."""


class PageServer:
    """Serves the page of an agent or of a relay.

    Attributes:
        address: the real one, once :meth:`start` has returned.

    """

    def __init__(
        self,
        settings: PageSettings,
        service: AdminServicer,
        source: PageSource,
        tokens: PageTokens | None = None,
    ) -> None:
        """Serve *service* as *settings* say; *tokens* are those that its admin service issues, None for none."""
        self.address = settings.address
        self._tokens = PageTokens() if tokens is None else tokens
        self._settings = settings
        self._source = source
        self._calls = AdminCalls(service, source.clock)
        self._hub = Hub(self._calls, source.since)
        self._files = read_files()
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)
        self._certificates = None if settings.tls is None else HttpsCertificates(settings.tls)
        application = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[self._one_request, self._checked]
        )
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/static/{name:.+}", self._file),
                web.get("/api/stream", self._stream),
                web.get("/api/{kind}", self._question),
                web.post("/api/write/{kind}", self._write),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=_LAST_WORD_SECONDS,
            logger=quiet_logger(__name__),
            lingering_time=0.0,
            # A position of many agents comes as a header, or in the query; there with a token.
            max_field_size=2 * MAX_ID_CHARACTERS,
            max_line_size=2 * MAX_ID_CHARACTERS + MAX_TOKEN_CHARACTERS,
        )
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The address as a browser takes it."""
        return f"{'http' if self._certificates is None else 'https'}://{self.address}/"

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            StateError: the address cannot be bound.

        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101  (there is one after the set-up)
        tls = None if self._certificates is None else self._certificates.context
        self._connections = Connections(server, _MAX_CONNECTIONS, _CONNECTION_SECONDS, tls)
        try:
            self._server = await bind(self._connections, self.address, _MAX_CONNECTIONS)
        except OSError as error:
            await self._runner.cleanup()
            raise StateError(
                f"--page {self.address} cannot be bound: {bind_reason(error)}; give another address, or off"
            ) from error
        self.address = TcpAddress(self.address.host, self._server.sockets[0].getsockname()[1])
        self._tokens.page = ServedPage(self.url, self._settings.allow is None, self._settings.write)

    async def serve_if_free(self) -> dict[str, str]:
        """Serve if the address is free: another program at it, or another agent, keeps nothing else from working.

        Returns:
            The address as ``page``; nothing where it is taken.

        """
        try:
            await self.start()
        except StateError as error:
            _log.warning("the page is not served", reason=str(error))
            return {}
        return {"page": self.url}

    async def stop(self) -> None:
        """Say goodbye to the tabs, and stop serving."""
        self._tokens.page = None
        if self._server is not None:
            self._server.close()
        await self._hub.close()
        await self._runner.cleanup()

    @web.middleware
    async def _one_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._connections is not None:
            self._connections.asked(request.transport)
        try:
            response = await handler(request)
        except AnswerError as error:
            response = self._refused(error)
        except AccessError as error:
            response = self._refused(AnswerError(403, str(error)))
        except web.HTTPException as error:
            response = self._refused(
                AnswerError(error.status, f"{request.method} {request.path[:100]}: {error.reason}")
            )
        if not response.prepared:
            response.headers.update({**_HEADERS, **response.headers})
            response.force_close()
        return response

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        access.check_host(request.headers.get("Host", ""), self._settings)
        if request.path.startswith("/api/"):
            access.check_origin(request.headers)
        # The page's own files say nothing of this server: a browser asks for them before it can send a token.
        if self._settings.allow is not None or handler not in (self._index, self._file):
            self._caller(request)
        return await handler(request)

    def _caller(self, request: web.Request) -> Caller:
        """Return the caller; the error is the answer to one without permission."""
        if self._settings.allow is None:
            return access.holder_of(self._tokens.read(self._token(request)), self._settings)
        return access.user_of(request.headers, names_of(request.transport), self._settings)

    def _token(self, request: web.Request) -> str:
        """Return the token of a request; of a stream, which a browser opens without headers, that of the query."""
        token = access.token_in(request.headers)
        if not token and request.match_info.handler == self._stream:
            return request.query.get("token", "")
        return token

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._served(INDEX, request)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._served(request.match_info["name"], request)

    def _served(self, name: str, request: web.Request) -> web.StreamResponse:
        file = self._files.get(name)
        if file is None:
            raise AnswerError(404, f"the page has no file {name[:100]!r}")
        headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = file.content_type
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            return web.Response(body=file.gzipped, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=file.content, headers=headers)

    async def _question(self, request: web.Request) -> web.StreamResponse:
        if self._questions.locked():
            raise AnswerError(429, f"{MAX_QUESTIONS} requests are being answered; try again in a moment")
        async with self._questions:
            try:
                async with asyncio.timeout(2 * ANSWER_SECONDS):
                    found = await ask_detail(
                        self._calls,
                        request.match_info["kind"],
                        dict(request.query),
                        self._settings.trace_url_template,
                        self._source.since,
                    )
            except TimeoutError:
                raise AnswerError(503, "no answer in time; ask for less") from None
        return web.Response(body=self._source.hinted(found), content_type="application/json")

    async def _write(self, request: web.Request) -> web.StreamResponse:
        access.check_write(request.headers)
        caller = self._caller(request)
        access.check_role(caller, self._settings)
        write = WRITES.get(request.match_info["kind"])
        if write is None:
            raise AnswerError(404, f"there is no write {request.match_info['kind'][:100]!r}")
        body = json_object(await request.read(), request.charset)
        author = access.author_of(caller, self._settings)
        return web.Response(body=await write(self._calls, body, author), content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        after = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        seconds = _seconds(request)
        positions, unknown = _positions(after)
        token = self._token(request)
        was_valid = self._tokens.read(token) is not None
        hello = self._hello(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_HEADERS})
        response.force_close()
        tab = self._hub.admit()
        if self._connections is not None and not tab.ended:
            self._connections.keep(request.transport)
        try:
            await response.prepare(request)
            await _send(response, message("hello", hello).encoded())
            if unknown:
                await _send(response, message("gap", {"sentence": unknown}).encoded())
            self._hub.join(tab, positions, seconds)
            while (item := await tab.next()) is not None:
                # Pulses come for ever: a stream does not outlive its token.
                if was_valid and not tab.ended and self._tokens.read(token) is None:
                    tab.end("token", access.LINK_NEEDED)
                    continue
                await _send(response, self._source.hinted(item.encoded()))
        except (ConnectionError, TimeoutError):
            _abort(request)
        finally:
            await asyncio.shield(self._hub.leave(tab))
        return response

    def _refused(self, error: AnswerError) -> web.Response:
        said = self._source.hinted(encode({"error": plain(error.sentence, _MAX_SENTENCE)}))
        headers = {"WWW-Authenticate": "Bearer"} if error.status == web.HTTPUnauthorized.status_code else None
        return web.Response(status=error.status, body=said, content_type="application/json", headers=headers)

    def _hello(self, request: web.Request) -> dict[str, Any]:
        caller = self._caller(request)
        return {
            "version": self._source.version,
            "source": self._source.kind,
            "name": self._source.name,
            "writable": access.may_write(caller, self._settings),
            "user": caller.name,
            "token": access.token_state(caller, self._token(request), self._settings),
            "startTime": self._source.start_time,
        }


def _positions(after: str) -> tuple[Positions | None, str]:
    """Return the position of a tab, or why it starts over: its browser could not show a refusal."""
    if not after:
        return None, ""
    try:
        return read(after), ""
    except AnswerError as error:
        return None, error.sentence


async def _send(response: web.StreamResponse, data: bytes) -> None:
    """Send to a tab; one that takes nothing for long is let go."""
    async with asyncio.timeout(_WRITE_SECONDS):
        await response.write(data)


def _abort(request: web.Request) -> None:
    if isinstance(request.transport, asyncio.Transport):
        request.transport.abort()


def _seconds(request: web.Request) -> int:
    text = request.query.get("seconds", "900")
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_SECONDS_DIGITS:
        raise AnswerError(400, "seconds is a whole number")
    return min(int(text), MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class PageSource:
    """Whose page it is.

    Attributes:
        kind: ``agent``, ``relay`` or ``bundle``; the time of a bundle stands still.
        name: for people: the pod, the host or the file.
        start_time: milliseconds since 1970.
        clock: returns the present, seconds since the epoch.
        program: the beginning of a command line of agentctl that reaches this server.
        since: seconds before the present that the verdict is about; None for those of ``agentctl diagnose``.

    """

    kind: str
    name: str
    version: str = __version__
    start_time: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    clock: Callable[[], float] = time.time
    program: str = PROGRAM
    since: float | None = None

    def hinted(self, values: bytes) -> bytes:
        """Return JSON with the program in its command lines."""
        if self.program == PROGRAM:
            return values
        return hinted(values.decode(), json.dumps(self.program)[1:-1]).encode()
