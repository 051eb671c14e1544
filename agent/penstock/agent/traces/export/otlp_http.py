"""OTLP over HTTP, as protobuf."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from typing import TYPE_CHECKING

import aiohttp
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.util.re import parse_env_headers
from penstock.agent.traces.export.otlp_config import http_url, redacted
from penstock.agent.traces.export.otlp_status import ExportError, http_error
from penstock.proto import __version__

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from penstock.agent.traces.export.otlp_config import ExportSettings

# An answer is a few bytes; what is above is not read.
_MAX_ANSWER = 64 << 10


class HttpSender:
    """A persistent connection on an event loop of its own; its time-out covers the whole call.

    Raises:
        OSError: a certificate cannot be read.
        ValueError: the address or a certificate cannot be used.

    """

    def __init__(self, settings: ExportSettings) -> None:
        self._url = http_url(settings.endpoint)
        self._shown = redacted(settings.endpoint)
        self._gzip = settings.gzip
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout)
        self._tls = _context(settings) if self._url.startswith("https:") else None
        self._headers = {
            **parse_env_headers(settings.headers, liberal=True),
            "Content-Type": "application/x-protobuf",
            "User-Agent": f"penstock-agent/{__version__}",
            **({"Content-Encoding": "gzip"} if settings.gzip else {}),
        }
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._session: aiohttp.ClientSession | None = None
        self._call: asyncio.Task[ExportTraceServiceResponse | ExportError] | None = None
        self._ended = False

    def send(self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse | ExportError:
        """Make one call, within its time-out."""
        if self._ended:
            return ExportError("the export has ended")
        body = request.SerializeToString()
        try:
            return self._runner.run(self._send(gzip.compress(body, 1) if self._gzip else body))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return ExportError(f"{self._shown}: {type(error).__name__}: {error}".rstrip(": "))
        except asyncio.CancelledError:
            return ExportError("the export has ended")

    async def _send(self, body: bytes) -> ExportTraceServiceResponse | ExportError:
        self._call = asyncio.current_task()
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=True)
        async with self._session.post(
            self._url, data=body, headers=self._headers, ssl=self._tls or True, allow_redirects=False
        ) as response:
            answer = await read_all(response.content, _MAX_ANSWER)
            error = http_error(response.status, response.headers, answer, time.time())
        if error is not None:
            return error
        try:
            return ExportTraceServiceResponse.FromString(answer)
        except DecodeError:
            # It was taken; what else it says is of no use.
            return ExportTraceServiceResponse()

    def interrupt(self) -> None:
        """Cancel a call that is under way."""
        self._ended = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Close the connection; after the thread that sends has ended. Idempotent."""
        if self._loop.is_closed() or self._loop.is_running():
            return
        if self._session is not None:
            self._runner.run(self._session.close())
            self._session = None
        self._runner.close()


async def read_all(content: aiohttp.StreamReader, limit: int) -> bytes:
    """Return all of an answer, *limit* bytes at most; it may come in pieces, and one read returns the first."""
    answer = bytearray()
    while len(answer) < limit and (piece := await content.read(limit - len(answer))):
        answer += piece
    return bytes(answer)


def _context(settings: ExportSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.certificate or None)
    if settings.client_certificate:
        context.load_cert_chain(settings.client_certificate, settings.client_key or None)
    return context
