"""Runs a trace exporter over a journal of the tests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.export.exporter import TraceExporter
from penstock.agent.traces.export.otlp_config import ExportSettings

from tests.support.agent.stories import MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from tests.support.otlp.backend import ReceivedSpan

# Long enough for two commits on a busy machine: the entries of a story are one request.
LIMITS = AssemblyLimits(grace_nano=250 * MS)
# Request, lease; request, load, deferral, handshake.
GOOD_SPANS = 6
STOP_SECONDS = 5.0


def exporter_of(book, endpoint: str, **options) -> TraceExporter:
    """Build an exporter of the book's journal with a short grace."""
    return TraceExporter(book.journal, ExportSettings(endpoint), **{"limits": LIMITS, **options})


@asynccontextmanager
async def running(exporter: TraceExporter) -> AsyncIterator[TraceExporter]:
    """Run *exporter*; it is stopped at the end."""
    exporter.start()
    try:
        yield exporter
    finally:
        await asyncio.to_thread(exporter.stop, STOP_SECONDS)


def exporting(book, endpoint: str, **options):
    """Run an exporter over gRPC; it is stopped at the end."""
    return running(exporter_of(book, endpoint, **options))


def exporting_http(book, url: str, **more: str):
    """Run an exporter over HTTP, configured by the environment's variables; it is stopped at the end."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", **more}
    return running(TraceExporter(book.journal, ExportSettings.from_environment(environment), limits=LIMITS))


async def until(condition: Callable[[], object], what: str, deadline: float = 60.0) -> None:
    """Poll until *condition* holds."""
    end = asyncio.get_running_loop().time() + deadline
    while not condition():
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.005)


def ids_of(spans: Iterable[ReceivedSpan]) -> list[tuple[str, str]]:
    """Return the ids of received spans."""
    return [(span.trace_id, span.span_id) for span in spans]
