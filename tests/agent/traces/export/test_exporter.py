"""The whole way: journal, thread, OTLP over a real connection, cursor."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from penstock.agent.errors import ConfigError
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.export.exporter import CURSOR, TraceExporter
from penstock.agent.traces.export.otlp_config import ExportSettings
from penstock.agent.traces.export.suspect_spans import STRIKES
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.sdk_spans import SpanConverter
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import deferral_start, noise
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    MS,
    PREFILL_CORE,
    closed,
    decode_story,
    failed_story,
    lease,
    prefill_story,
)
from tests.support.otlp.backend import Partial, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

# Long enough for two commits on a busy machine: what a story tells is to be one request.
LIMITS = AssemblyLimits(grace_nano=250 * MS)
# Request, lease; request, load, deferral, handshake.
GOOD_SPANS = 6
STOP_SECONDS = 5.0


def exporter_of(book, endpoint, **options) -> TraceExporter:
    """Build an exporter of the book's journal with a short grace."""
    settings = ExportSettings(endpoint)
    return TraceExporter(book.journal, settings, limits=LIMITS, **options)


@asynccontextmanager
async def exporting(book, endpoint, **options):
    """Run an exporter; it is stopped at the end."""
    exporter = exporter_of(book, endpoint, **options)
    exporter.start()
    try:
        yield exporter
    finally:
        await asyncio.to_thread(exporter.stop, STOP_SECONDS)


async def until(condition, what, deadline=60.0):
    """Poll until *condition* holds."""
    end = asyncio.get_running_loop().time() + deadline
    while not condition():
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.01)


def ids_of(spans):
    """Return the ids of received spans."""
    return [(span.trace_id, span.span_id) for span in spans]


async def test_a_request_reaches_the_backend(book, backend):
    """Both sides of a request arrive with their resources, linked, in one trace."""
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint):
        spans = await asyncio.to_thread(backend.wait_for, GOOD_SPANS)
    assert len(spans) == GOOD_SPANS
    load = next(span for span in spans if span.name == semconv.KV_LOAD)
    prefill, decode = (
        next(span for span in spans if span.name == semconv.REQUEST and span.resource["service.name"] == name)
        for name in ("vllm-prefill", "vllm-decode")
    )
    assert prefill.trace_id == decode.trace_id == load.trace_id
    assert load.links[0].span_id == prefill.span_id
    assert load.parent_span_id == decode.span_id
    assert (load.kind, prefill.kind) == ("client", "internal")
    assert load.resource["service.instance.id"] == "llama-0/decode/0"
    assert load.scope == "penstock"
    # The story is of 2025: it comes late.
    assert load.attributes["penstock.replayed"] is True


async def test_status_and_cursor_follow(book, backend):
    """When all is delivered, the cursor stands behind the log and no span waits."""
    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().spans_exported == 2, "two spans are exported")
        await until(lambda: exporter.status().low == 3, "nothing is needed any more")
        status = exporter.status()
    assert (status.exported, status.position, status.error) == (1, 2, "")
    assert status.oldest_unexported_unix_nano == 0
    with book.journal.reader() as reader:
        await until(lambda: reader.cursor(CURSOR) == (3, 1), "the cursor is saved")


async def test_exemplars_are_told_of_what_was_delivered(book, backend):
    """Each entry comes with the ids of the span that tells it."""
    told = []
    await book.tell(failed_story())
    async with exporting(book, backend.endpoint, on_exported=lambda *args: told.append(args)):
        await until(lambda: len(told) == 6, "all entries are told")
    spans = set(ids_of(backend.spans))
    assert {(trace, span) for _, _, trace, span in told} <= spans
    failures = [entry for _, entry, _, _ in told if entry.HasField("transfer_failure")]
    assert len(failures) == 2


async def test_each_call_to_the_backend_is_measured(book, backend):
    """Also those that fail."""
    seconds = []
    backend.stop()
    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint, observe=seconds.append):
        await until(lambda: seconds, "a call failed")
        backend.start()
        await asyncio.to_thread(backend.wait_for, 2)
    assert len(seconds) >= 2
    assert all(took > 0 for took in seconds)


async def test_an_error_of_our_own_shows_and_the_export_goes_on(book, backend, monkeypatch):
    """The thread outlives it: the walk begins again where it was."""
    monkeypatch.setattr("penstock.agent.traces.export.exporter._AGAIN_SECONDS", 0.01)
    broken = threading.Event()
    broken.set()

    def measure(_seconds: float) -> None:
        if broken.is_set():
            raise RuntimeError("boom")

    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint, observe=measure) as exporter:
        await until(lambda: exporter.status().error == "RuntimeError: boom", "the error shows")
        broken.clear()
        await book.tell(decode_story())
        await until(lambda: exporter.status().spans_exported == GOOD_SPANS, "all spans are exported")


async def test_a_backend_that_is_down_loses_nothing(book, backend):
    """Spans wait in the journal while it is away, the status says why, and they come once it is back."""
    backend.stop()
    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().error, "the failure shows")
        failing = exporter.status()
        await book.tell(decode_story())
        backend.start()
        spans = await asyncio.to_thread(backend.wait_for, GOOD_SPANS)
        await until(lambda: not exporter.status().error, "the error is gone")
    assert failing.oldest_unexported_unix_nano > 0
    assert failing.spans_exported == 0
    assert "UNAVAILABLE" in failing.error or "DEADLINE" in failing.error
    assert len(set(ids_of(spans))) == len(spans) == GOOD_SPANS


async def test_a_restart_sends_nothing_twice(book, backend):
    """What is delivered stays delivered, and what is unfinished is finished by the next agent."""
    begun, *rest = decode_story()
    await book.tell(prefill_story(), [begun])
    async with exporting(book, backend.endpoint):
        await asyncio.to_thread(backend.wait_for, 2)
    await book.reopen()
    await book.tell(rest)
    async with exporting(book, backend.endpoint):
        spans = await asyncio.to_thread(backend.wait_for, GOOD_SPANS)
    assert len(set(ids_of(spans))) == len(spans) == GOOD_SPANS
    # Its start was read by both.
    assert [span.attributes[semconv.DEFERRAL_REASON] for span in spans if span.name == semconv.DEFERRAL] == [
        "remote_kv"
    ]


async def test_a_stop_while_the_backend_is_down(book, backend):
    """It ends within its deadline, and the next agent delivers."""
    backend.stop()
    await book.tell(prefill_story())
    exporter = exporter_of(book, backend.endpoint)
    exporter.start()
    await until(lambda: exporter.status().error, "the failure shows")
    await asyncio.to_thread(exporter.stop, 0.1)
    backend.start()
    await book.reopen()
    async with exporting(book, backend.endpoint):
        await asyncio.to_thread(backend.wait_for, 2)
    assert len(backend.spans) == 2


async def test_stop_waits_for_the_grace(book, backend):
    """What was closed just before the end is delivered before the end."""
    exporter = exporter_of(book, backend.endpoint)
    exporter.start()
    await book.tell(prefill_story())
    await asyncio.to_thread(exporter.stop, STOP_SECONDS)
    assert len(backend.spans) == 2
    exporter.stop(0.0)


async def test_a_call_that_fails_in_between(book, backend):
    """Each call is repeated by itself: those before and after it come once."""
    refusals = iter([None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, None])
    backend.refuse(lambda _spans: next(refusals, None))
    count = 700
    for start in range(0, count, 100):
        await book.add(PREFILL_CORE, *(closed(f"r{number}-aaaaaaaa") for number in range(start, start + 100)))
    async with exporting(book, backend.endpoint):
        spans = await asyncio.to_thread(backend.wait_for, count)
    assert len(set(ids_of(spans))) == len(spans) == count


async def test_one_bad_span_does_not_hold_up_the_others(book, backend):
    """A backend that refuses a span for good costs that span; it is counted."""
    backend.refuse(
        lambda spans: (
            grpc.StatusCode.INVALID_ARGUMENT if any(span.name == semconv.KV_LOAD for span in spans) else None
        )
    )
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
        status = exporter.status()
    assert sorted({span.name for span in backend.spans}) == [
        semconv.HANDSHAKE,
        semconv.KV_LEASE,
        semconv.DEFERRAL,
        semconv.REQUEST,
    ]
    assert (status.spans_refused, status.spans_exported) == (1, GOOD_SPANS - 1)


async def test_a_wrong_password_is_not_the_spans_fault(book, backend):
    """Errors of the configuration are waited out: nothing is given up for them."""
    refusals = iter([grpc.StatusCode.UNAUTHENTICATED])
    backend.refuse(lambda _spans: next(refusals, None))
    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, 2)
        assert exporter.status().spans_refused == 0


async def test_a_span_that_cannot_be_encoded(book, backend):
    """A time that no field can hold costs its span only."""
    bad = lease()
    bad.lease_closed.start_time_unix_nano = 0
    bad.time_unix_nano = (1 << 64) - 1
    bad.lease_closed.blocks = (1 << 64) - 1
    good = closed("good-aaaaaaaa")
    await book.add(PREFILL_CORE, closed(bad.request_id, kv_role=common_pb2.ROLE_PREFILL), bad, good)
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 2, "everything is done with")
    assert "good-aaaaaaaa" in [span.attributes.get(semconv.REQUEST_ID) for span in backend.spans]


async def test_sampled_out_spans_are_counted(book, backend):
    """A ratio of zero sends nothing good and moves on."""
    await book.tell(decode_story(), failed_story())
    async with exporting(book, backend.endpoint, sample_ratio=lambda _source: 0.0) as exporter:
        await until(lambda: exporter.status().low == 14, "everything is done with")
        status = exporter.status()
    assert status.spans_sampled_out > 0


async def test_late_entries_after_a_restart(book, backend):
    """The request is found in the journal again: its lease gets the right trace and parent."""
    story = prefill_story(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    await book.tell(story[:1])
    async with exporting(book, backend.endpoint):
        await asyncio.to_thread(backend.wait_for, 1)
    await book.reopen()
    await book.tell(story[1:])
    async with exporting(book, backend.endpoint):
        request, held = await asyncio.to_thread(backend.wait_for, 2)
    assert (held.name, held.trace_id) == (semconv.KV_LEASE, "0af7651916cd43dd8448eb211c80319c")
    assert held.parent_span_id == request.span_id
    assert request.parent_span_id == "b7ad6b7169203331"


async def test_without_an_endpoint_the_cursor_follows(book):
    """Nothing is sent and nothing piles up: an endpoint that comes later gets what comes later."""
    await book.tell(prefill_story())
    await book.add(DECODE_CORE, deferral_start(DECODE))
    async with exporting(book, "") as exporter:
        await until(lambda: exporter.status().exported == 3, "the cursor follows")
        assert exporter.status().endpoint == ""
    with book.journal.reader() as reader:
        await until(lambda: reader.cursor(CURSOR) == (4, 3), "the cursor is saved")


def test_stop_without_start(book, backend):
    """An agent that fails at start-up stops what it did not start."""
    exporter = exporter_of(book, backend.endpoint)
    exporter.stop(1.0)
    assert backend.spans == []


@pytest.mark.parametrize(("protocol", "path"), [("grpc", ""), ("http/protobuf", "/v1/traces")])
def test_a_certificate_that_is_not_there_is_a_sentence(book, protocol, path):
    """It comes at start-up and names the place."""
    settings = ExportSettings(f"https://127.0.0.1:1{path}", protocol, certificate="/nowhere/ca.pem")
    with pytest.raises(
        ConfigError, match=rf"no trace export to .* over {protocol}: .*No such file.*; check the OTEL_"
    ):
        TraceExporter(book.journal, settings)


async def test_the_backend_asks_for_time(book, backend):
    """Its RetryInfo is honoured: the next try is not made before; RESOURCE_EXHAUSTED with one is no refusal."""
    calls = []

    def decide(_spans):
        calls.append(time.monotonic())
        return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.8) if len(calls) == 1 else None

    backend.refuse(decide)
    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, 2)
        await until(lambda: exporter.status().spans_exported == 2, "all is exported")
        assert exporter.status().spans_refused == 0
    assert calls[1] - calls[0] >= 0.8


async def test_a_partial_success_is_not_sent_again(book, backend):
    """What the backend rejects of a call is counted; which spans it does not say, so none gets an exemplar."""
    told = []
    backend.refuse(lambda _spans: Partial(1))
    await book.tell(prefill_story())
    async with exporting(book, backend.endpoint, on_exported=lambda *args: told.append(args)) as exporter:
        await until(lambda: exporter.status().low == 3, "everything is done with")
        status = exporter.status()
    assert (status.spans_exported, status.spans_refused, status.error) == (1, 1, "")
    assert (backend.calls, told) == (1, [])


DOUBTFUL = [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN]


@pytest.fixture
def no_pauses(monkeypatch):
    """Let retries follow each other at once."""
    monkeypatch.setattr("penstock.agent.traces.export.delivery._FIRST_BACKOFF", 0.001)
    monkeypatch.setattr("penstock.agent.traces.export.delivery._MAX_BACKOFF", 0.002)


@pytest.mark.parametrize("code", DOUBTFUL)
@pytest.mark.usefixtures("no_pauses")
async def test_a_refusal_of_doubtful_origin(book, backend, code):
    """A span that fails every time while others are taken is given up, and holds up no other."""
    backend.refuse(lambda spans: code if any(span.name == semconv.KV_LOAD for span in spans) else None)
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, GOOD_SPANS - 1)
        assert exporter.status().spans_refused == 0
        more = 0
        while not exporter.status().spans_refused:
            assert "1 spans are refused, others are taken" in exporter.status().error or more == 0
            more += 1
            await book.add(PREFILL_CORE, closed(f"more{more}-aaaaaaaa"))
            await asyncio.to_thread(backend.wait_for, GOOD_SPANS - 1 + more)
            assert more < 50
        await until(lambda: exporter.status().low == 9 + more, "everything is done with")
        status = exporter.status()
    assert (status.spans_refused, status.spans_exported, status.error) == (1, GOOD_SPANS - 1 + more, "")
    assert more >= 2
    assert len(set(ids_of(backend.spans))) == len(backend.spans)


@pytest.mark.parametrize("code", [*DOUBTFUL, grpc.StatusCode.FAILED_PRECONDITION])
@pytest.mark.parametrize("calls", [1, 7, 60])
@pytest.mark.usefixtures("no_pauses")
async def test_a_backend_that_fails_for_a_while(book, backend, code, calls):
    """However long it is: nothing is given up, and each span comes once."""
    backend.refuse(lambda _spans: code if backend.calls <= calls else None)
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait, lambda _: backend.calls > calls, "it was asked for long enough")
        await book.add(PREFILL_CORE, closed("later-aaaaaaaa"))
        await until(lambda: exporter.status().low == 10, "everything is done with")
        status = exporter.status()
    assert (status.spans_refused, status.error) == (0, "")
    assert status.spans_exported == len(backend.spans) == len(set(ids_of(backend.spans))) == GOOD_SPANS + 1


@pytest.mark.usefixtures("no_pauses")
async def test_a_backend_that_fails_most_of_the_time(book, backend):
    """Every ninth call is taken, whatever is in it: nothing is given up."""
    backend.refuse(lambda _spans: None if backend.calls % 9 == 0 else grpc.StatusCode.INTERNAL)
    # All at once: how they share calls, and so which are taken, must not hang on the machine's pace.
    for number in range(80):
        await book.add(PREFILL_CORE, closed(f"r{number}-aaaaaaaa"))
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 81, "everything is done with")
        assert exporter.status().spans_refused == 0
    assert len(set(ids_of(backend.spans))) == len(backend.spans) == 80


@pytest.mark.usefixtures("no_pauses")
async def test_what_is_set_aside_outlives_a_restart(book, backend):
    """The cursor stays before it: the next life sends it again, with what was delivered after it."""
    bad = [True]
    backend.refuse(
        lambda spans: (
            grpc.StatusCode.INTERNAL if bad and any(s.name == semconv.KV_LOAD for s in spans) else None
        )
    )
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, GOOD_SPANS - 1)
        await until(lambda: exporter.status().error, "the refusal shows")
        status = exporter.status()
    assert (status.spans_refused, status.low) == (0, 1)
    assert status.oldest_unexported_unix_nano > 0
    bad.clear()
    await book.reopen()
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
    assert len(set(ids_of(backend.spans))) == GOOD_SPANS


@pytest.mark.usefixtures("no_pauses")
async def test_http_500_for_a_while(book):
    """A gateway without a server behind it, a server that starts: nothing is given up."""
    answers = iter([500] * 20 + [501] * 10 + [500, 503] * 5)
    await book.tell(prefill_story(), decode_story())
    with http_backend(lambda _found: (next(answers, 200), {}, b"boom")) as http:
        async with exporting_http(book, http.url) as exporter:
            await until(lambda: exporter.status().low == 9, "everything is done with")
            status = exporter.status()
    assert (status.spans_refused, status.spans_exported) == (0, GOOD_SPANS)
    assert len(http.taken) == GOOD_SPANS


@pytest.mark.usefixtures("no_pauses")
async def test_several_bad_spans_among_good_ones(book, backend):
    """All are found, and none of the others is lost."""
    backend.refuse(
        lambda spans: (
            grpc.StatusCode.UNKNOWN
            if any("bad" in span.attributes[semconv.REQUEST_ID] for span in spans)
            else None
        )
    )
    for number in range(40):
        await book.add(PREFILL_CORE, closed(f"{'bad' if number % 10 == 3 else 'good'}{number}-aaaaaaaa"))
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, 36)
        for more in range(STRIKES + 2):
            await book.add(PREFILL_CORE, closed(f"good-more{more}-aaaaaaaa"))
            await asyncio.to_thread(backend.wait_for, 36 + more + 1)
        await until(lambda: exporter.status().low == 40 + STRIKES + 3, "everything is done with")
        assert exporter.status().spans_refused == 4
    assert len(set(ids_of(backend.spans))) == len(backend.spans) == 36 + STRIKES + 2


@pytest.mark.usefixtures("no_pauses")
async def test_a_span_that_cannot_be_converted(book, backend, monkeypatch):
    """An error of our own on the way to the backend costs that span only."""
    convert = SpanConverter.readable

    def readable(self, span, *, replayed):
        if span.name == semconv.KV_LOAD:
            raise OverflowError("boom")
        return convert(self, span, replayed=replayed)

    monkeypatch.setattr(SpanConverter, "readable", readable)
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
        assert (exporter.status().spans_refused, exporter.status().spans_exported) == (1, GOOD_SPANS - 1)


async def test_a_message_that_is_too_large_is_halved(book, backend):
    """Though the code is that of a busy backend; nothing is given up."""
    backend.refuse(
        lambda spans: (
            Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, details="Received message larger than max (9 vs. 4)")
            if len(spans) > 2
            else None
        )
    )
    await book.tell(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
        assert exporter.status().spans_refused == 0
    assert len(backend.spans) == GOOD_SPANS


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_backend_that_never_answers(book, protocol):
    """Each call ends at its deadline; commits do not wait for it, and a stop ends a call that is under way."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        exporter = TraceExporter(book.journal, ExportSettings(endpoint, protocol, timeout=0.3), limits=LIMITS)
        exporter.start()
        await book.tell(prefill_story())
        await until(lambda: exporter.status().error, "the failure shows")
        await asyncio.wait_for(book.tell(decode_story()), 5)
        await asyncio.to_thread(exporter.stop, 0.1)
        assert not exporter._thread.is_alive()
    status = exporter.status()
    assert status.spans_exported == status.spans_refused == 0
    assert status.oldest_unexported_unix_nano > 0


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_stop_interrupts_a_call(book, protocol):
    """A time-out of minutes does not keep the agent from ending."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        exporter = TraceExporter(book.journal, ExportSettings(endpoint, protocol, timeout=600), limits=LIMITS)
        exporter.start()
        await book.tell(prefill_story())
        connection, _ = await asyncio.to_thread(hole.accept)
        with connection:
            await asyncio.to_thread(exporter.stop, 0.2)
            assert not exporter._thread.is_alive()
            exporter.stop(0.1)


class HttpBackend:
    """Takes spans over HTTP, as *decide* says: status, headers and body for the names of a call's spans."""

    def __init__(self, decide) -> None:
        self.decide = decide
        self.taken: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one call."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        found = [
            span.name
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        self.requests.append((handler.path, dict(handler.headers)))
        status, headers, content = self.decide(found)
        self.taken.extend(found if status == 200 else [])
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@contextmanager
def http_backend(decide=lambda _found: (200, {}, b"")) -> Iterator[HttpBackend]:
    """Run one."""
    backend = HttpBackend(decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def do_POST(self) -> None:
            backend.answer(self)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        backend.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield backend
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def exporting_http(book, url, **more):
    """Run an exporter over HTTP, configured by the environment's variables; it is stopped at the end."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", **more}
    exporter = TraceExporter(book.journal, ExportSettings.from_environment(environment), limits=LIMITS)
    exporter.start()
    try:
        yield exporter
    finally:
        await asyncio.to_thread(exporter.stop, STOP_SECONDS)


async def test_http_protobuf(book):
    """The other protocol of OTLP: its path, its headers, its compression; what is refused is told apart, too."""
    await book.tell(prefill_story(), decode_story())
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
    """As over gRPC."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    await book.tell(prefill_story())
    headers = {"Content-Type": "application/x-protobuf"}
    with http_backend(lambda _found: (200, headers, answer.SerializeToString())) as http:
        async with exporting_http(book, http.url) as exporter:
            await until(lambda: exporter.status().low == 3, "everything is done with")
    assert (exporter.status().spans_refused, exporter.status().spans_exported) == (1, 1)
    assert len(http.requests) == 1


async def test_http_asks_for_time(book):
    """Retry-After is honoured; an answer that nobody can read is one all the same."""
    calls = []

    def decide(_found):
        calls.append(time.monotonic())
        return (429, {"Retry-After": "1"}, b"slow down") if len(calls) == 1 else (200, {}, b"\xff\xff")

    await book.tell(prefill_story())
    with http_backend(decide) as http:
        async with exporting_http(book, http.url) as exporter:
            await until(lambda: exporter.status().error, "the failure shows")
            assert exporter.status().error == "HTTP 429: slow down"
            await until(lambda: exporter.status().spans_exported == 2, "all is exported")
    assert calls[1] - calls[0] >= 1


async def test_http_without_an_answer(book):
    """A backend that is not there shows as an error, and nothing is given up."""
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        endpoint = f"http://127.0.0.1:{closed_soon.getsockname()[1]}"
    await book.tell(prefill_story())
    async with exporting_http(book, endpoint) as exporter:
        await until(lambda: exporter.status().error, "the failure shows")
        assert exporter.status().error.startswith(f"{endpoint}/v1/traces: ClientConnectorError: ")
    assert (exporter.status().spans_exported, exporter.status().spans_refused) == (0, 0)


async def test_traces_that_were_given_up_hold_up_no_others(book, tmp_path, backend, monkeypatch):
    """The log was trimmed while the backend was away: what is left is delivered, and the export goes on."""
    monkeypatch.setattr("penstock.agent.journal.schema.MIN_LIMIT", 0)
    monkeypatch.setattr("penstock.agent.state.disk_budget.Budget.reserve", 4096)
    backend.stop()
    book = type(book)(tmp_path / "small", limit=1 << 20)
    exporter = exporter_of(book, backend.endpoint)
    exporter.start()
    text = noise(4000)
    for number in range(400):
        await book.add(PREFILL_CORE, closed(f"r{number}-aaaaaaaa", external_request_id=text))
        book.journal.save_fold(number + 1, b"fold")
    await until(lambda: exporter.status().error, "the failure shows")
    usage = book.journal.usage
    assert usage.pruned == usage.unexported > 100
    with book.journal.reader() as reader:
        left = {Batch.FromString(row.body).events[0].request_id for row in reader.batches(0, limit=1000)}
    backend.start()
    await until(lambda: exporter.status().exported == 400, "everything is done with")
    await book.add(PREFILL_CORE, closed("later-aaaaaaaa"))
    await until(lambda: exporter.status().exported == 401, "the export goes on")
    await asyncio.to_thread(exporter.stop, STOP_SECONDS)
    await book.journal.close()
    delivered = {span.attributes[semconv.REQUEST_ID] for span in backend.spans}
    assert left | {"later-aaaaaaaa"} <= delivered
    assert len(delivered) < 401
