"""The export over HTTP: headers, answers, errors."""

from __future__ import annotations

import socket
import threading
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)
from penstock.agent.traces.spans import semconv

from tests.support.agent.stories import (
    decode_story,
    prefill_story,
)
from tests.support.otlp.exporting import GOOD_SPANS, exporting_http, until
from tests.support.otlp.http_backend import http_backend


async def test_http_500_for_a_while(book, monkeypatch):
    """Temporary 500, 501 and 503 answers of a gateway drop no span."""
    monkeypatch.setattr("penstock.agent.traces.export.delivery._FIRST_BACKOFF", 0.001)
    monkeypatch.setattr("penstock.agent.traces.export.delivery._MAX_BACKOFF", 0.002)
    answers = iter([500] * 4 + [503] * 20 + [501, 503] * 3)
    await book.append(prefill_story(), decode_story())
    with http_backend(lambda _found: (next(answers, 200), {}, b"boom")) as http:
        async with exporting_http(book, http.url) as exporter:
            await until(lambda: exporter.status().low == 9, "everything is done with")
            status = exporter.status()
    assert (status.spans_refused, status.spans_exported) == (0, GOOD_SPANS)
    assert len(http.taken) == GOOD_SPANS


async def test_http_protobuf(book):
    """OTLP over HTTP uses its path, headers and compression; refusals are classified as over gRPC."""
    await book.append(prefill_story(), decode_story())
    with http_backend(lambda found: (400 if semconv.KV_LOAD in found else 200, {}, b"")) as http:
        async with exporting_http(
            book,
            http.url,
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20x",
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        ) as exporter:
            await until(lambda: exporter.status().low == 9, "everything is done with")
    assert sorted(http.taken) == sorted(
        [semconv.REQUEST, semconv.REQUEST, semconv.KV_LEASE, semconv.DEFERRAL, semconv.HANDSHAKE]
    )
    assert (exporter.status().spans_refused, exporter.status().spans_exported) == (1, GOOD_SPANS - 1)
    path, headers = http.requests[0]
    headers = {name.lower(): value for name, value in headers.items()}
    assert path == "/v1/traces"
    assert headers["authorization"] == "Bearer x"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["user-agent"].startswith("penstock-agent/")


async def test_http_partial_success(book):
    """A partial success over HTTP counts the rejected spans."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    await book.append(prefill_story())
    headers = {"Content-Type": "application/x-protobuf"}
    with http_backend(lambda _found: (200, headers, answer.SerializeToString())) as http:
        async with exporting_http(book, http.url) as exporter:
            await until(lambda: exporter.status().low == 3, "everything is done with")
    assert (exporter.status().spans_refused, exporter.status().spans_exported) == (1, 1)
    assert len(http.requests) == 1


async def test_http_asks_for_time(book):
    """Retry-After is honoured; a 200 with an unreadable body counts as success."""
    calls = []
    shown = threading.Event()

    def decide(_found):
        calls.append(time.monotonic())
        if len(calls) == 1:
            return 429, {"Retry-After": "1"}, b"slow down"
        # The failure shows until this is answered.
        shown.wait(60)
        return 200, {}, b"\xff\xff"

    await book.append(prefill_story())
    with http_backend(decide) as http:
        async with exporting_http(book, http.url, OTEL_EXPORTER_OTLP_TIMEOUT="60000") as exporter:
            await until(lambda: exporter.status().error, "the failure shows")
            assert exporter.status().error == "HTTP 429: slow down"
            shown.set()
            await until(lambda: exporter.status().spans_exported == 2, "all is exported")
    assert calls[1] - calls[0] >= 1


async def test_http_without_an_answer(book):
    """A refused connection is reported as an error; no span is dropped."""
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        endpoint = f"http://127.0.0.1:{closed_soon.getsockname()[1]}"
    await book.append(prefill_story())
    async with exporting_http(book, endpoint) as exporter:
        await until(lambda: exporter.status().error, "the failure shows")
        assert exporter.status().error.startswith(f"{endpoint}/v1/traces: ClientConnectorError: ")
    assert (exporter.status().spans_exported, exporter.status().spans_refused) == (0, 0)
