"""The exporter end to end: journal, thread, OTLP over a real connection, cursor."""

from __future__ import annotations

import asyncio
import threading
import time

import grpc
import pytest
from penstock.agent.errors import ConfigError
from penstock.agent.traces.export.exporter import CURSOR, TraceExporter
from penstock.agent.traces.export.otlp_config import ExportSettings
from penstock.agent.traces.spans import semconv
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import deferral_start, noise
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    PREFILL_CORE,
    closed,
    decode_story,
    failed_story,
    lease,
    prefill_story,
)
from tests.support.otlp.backend import Partial, Refusal
from tests.support.otlp.exporting import (
    GOOD_SPANS,
    STOP_SECONDS,
    exporter_of,
    exporting,
    ids_of,
    until,
)

pytestmark = pytest.mark.usefixtures("short_pauses")


async def test_a_request_reaches_the_backend(book, backend):
    """Both sides of a request arrive with their resources, linked, in one trace."""
    await book.append(prefill_story(), decode_story())
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
    await book.append(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().spans_exported == 2, "two spans are exported")
        await until(lambda: exporter.status().low == 3, "nothing is needed any more")
        status = exporter.status()
    assert (status.exported, status.position, status.error) == (1, 2, "")
    assert status.oldest_unexported_unix_nano == 0
    with book.journal.reader() as reader:
        await until(lambda: reader.cursor(CURSOR) == (3, 1), "the cursor is saved")


async def test_delivered_entries_are_reported_for_exemplars(book, backend):
    """Each delivered entry is reported with its span's ids."""
    told = []
    await book.append(failed_story())
    async with exporting(book, backend.endpoint, on_exported=lambda *args: told.append(args)):
        await until(lambda: len(told) == 6, "all entries are told")
    spans = set(ids_of(backend.spans))
    assert {(trace, span) for _, _, trace, span in told} <= spans
    failures = [entry for _, entry, _, _ in told if entry.HasField("transfer_failure")]
    assert len(failures) == 2


async def test_each_call_to_the_backend_is_measured(book, backend):
    """The duration of each call is observed, failed ones included."""
    seconds: list[float] = []
    backend.stop()
    await book.append(prefill_story())
    async with exporting(book, backend.endpoint, observe=seconds.append):
        await until(lambda: seconds, "a call failed")
        backend.start()
        await asyncio.to_thread(backend.wait_for, 2)
    assert len(seconds) >= 2
    assert all(took > 0 for took in seconds)


async def test_an_error_of_our_own_shows_and_the_export_goes_on(book, backend, monkeypatch):
    """After an exception the thread continues from its position."""
    monkeypatch.setattr("penstock.agent.traces.export.exporter._AGAIN_SECONDS", 0.01)
    broken = threading.Event()
    broken.set()

    def measure(_seconds: float) -> None:
        if broken.is_set():
            raise RuntimeError("boom")

    await book.append(prefill_story())
    async with exporting(book, backend.endpoint, observe=measure) as exporter:
        await until(lambda: exporter.status().error == "RuntimeError: boom", "the error shows")
        broken.clear()
        await book.append(decode_story())
        await until(lambda: exporter.status().spans_exported == GOOD_SPANS, "all spans are exported")


async def test_a_backend_that_is_down_loses_nothing(book, backend):
    """Spans wait in the journal while it is away, the status says why, and they come once it is back."""
    backend.stop()
    await book.append(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().error, "the failure shows")
        failing = exporter.status()
        await book.append(decode_story())
        backend.start()
        spans = await asyncio.to_thread(backend.wait_for, GOOD_SPANS)
        await until(lambda: not exporter.status().error, "the error is gone")
    assert failing.oldest_unexported_unix_nano > 0
    assert failing.spans_exported == 0
    assert "UNAVAILABLE" in failing.error or "DEADLINE" in failing.error
    assert len(set(ids_of(spans))) == len(spans) == GOOD_SPANS


async def test_a_restart_sends_nothing_twice(book, backend):
    """Delivered spans are not sent again; the next agent finishes the open ones."""
    begun, *rest = decode_story()
    await book.append(prefill_story(), [begun])
    async with exporting(book, backend.endpoint):
        await asyncio.to_thread(backend.wait_for, 2)
    await book.reopen()
    await book.append(rest)
    async with exporting(book, backend.endpoint):
        spans = await asyncio.to_thread(backend.wait_for, GOOD_SPANS)
    assert len(set(ids_of(spans))) == len(spans) == GOOD_SPANS
    # Its start was read by both.
    assert [span.attributes[semconv.DEFERRAL_REASON] for span in spans if span.name == semconv.DEFERRAL] == [
        "remote_kv"
    ]


async def test_a_stop_while_the_backend_is_down(book, backend):
    """The stop ends within its deadline; the next agent delivers the spans."""
    backend.stop()
    await book.append(prefill_story())
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
    """Requests that closed just before the stop are delivered before it ends."""
    exporter = exporter_of(book, backend.endpoint)
    exporter.start()
    await book.append(prefill_story())
    await asyncio.to_thread(exporter.stop, 60.0)
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
    await book.append(prefill_story(), decode_story())
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
    """Authentication errors are retried; no span is dropped."""
    refusals = iter([grpc.StatusCode.UNAUTHENTICATED])
    backend.refuse(lambda _spans: next(refusals, None))
    await book.append(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, 2)
        assert exporter.status().spans_refused == 0


async def test_a_span_that_cannot_be_encoded(book, backend):
    """A time out of range drops only its span."""
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
    """With a ratio of 0 successful traces are counted and the cursor moves."""
    await book.append(decode_story(), failed_story())
    async with exporting(book, backend.endpoint, sample_ratio=lambda _source: 0.0) as exporter:
        await until(lambda: exporter.status().low == 14, "everything is done with")
        status = exporter.status()
    assert status.spans_sampled_out > 0


async def test_late_entries_after_a_restart(book, backend):
    """The request is found in the journal again: its lease gets the right trace and parent."""
    story = prefill_story(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    await book.append(story[:1])
    async with exporting(book, backend.endpoint):
        await asyncio.to_thread(backend.wait_for, 1)
    await book.reopen()
    await book.append(story[1:])
    async with exporting(book, backend.endpoint):
        request, held = await asyncio.to_thread(backend.wait_for, 2)
    assert (held.name, held.trace_id) == (semconv.KV_LEASE, "0af7651916cd43dd8448eb211c80319c")
    assert held.parent_span_id == request.span_id
    assert request.parent_span_id == "b7ad6b7169203331"


async def test_without_an_endpoint_the_cursor_follows(book):
    """Without an endpoint the cursor follows the log; an endpoint set later gets later spans only."""
    await book.append(prefill_story())
    await book.add(DECODE_CORE, deferral_start(DECODE))
    async with exporting(book, "") as exporter:
        await until(lambda: exporter.status().exported == 3, "the cursor follows")
        assert exporter.status().endpoint == ""
    with book.journal.reader() as reader:
        await until(lambda: reader.cursor(CURSOR) == (4, 3), "the cursor is saved")


def test_stop_without_start(book, backend):
    """Stopping an exporter that was not started does nothing."""
    exporter = exporter_of(book, backend.endpoint)
    exporter.stop(1.0)
    assert backend.spans == []


@pytest.mark.parametrize(("protocol", "path"), [("grpc", ""), ("http/protobuf", "/v1/traces")])
def test_a_certificate_that_is_not_there_is_a_sentence(book, protocol, path):
    """The start fails with the path of the certificate."""
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
        return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.3) if len(calls) == 1 else None

    backend.refuse(decide)
    await book.append(prefill_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait_for, 2)
        await until(lambda: exporter.status().spans_exported == 2, "all is exported")
        assert exporter.status().spans_refused == 0
    assert calls[1] - calls[0] >= 0.3


async def test_a_partial_success_is_not_sent_again(book, backend):
    """Rejected spans of a call are counted; since it is unknown which, none of the call gets an exemplar."""
    told = []
    backend.refuse(lambda _spans: Partial(1))
    await book.append(prefill_story())
    async with exporting(book, backend.endpoint, on_exported=lambda *args: told.append(args)) as exporter:
        await until(lambda: exporter.status().low == 3, "everything is done with")
        status = exporter.status()
    assert (status.spans_exported, status.spans_refused, status.error) == (1, 1, "")
    assert (backend.calls, told) == (1, [])


async def test_traces_that_were_given_up_hold_up_no_others(book, tmp_path, backend, monkeypatch):
    """After the log is trimmed during an outage the remaining spans are delivered."""
    monkeypatch.setattr("penstock.agent.journal.database.schema.MIN_LIMIT", 0)
    monkeypatch.setattr("penstock.agent.state.budget.Budget.reserve", 4096)
    backend.stop()
    book = type(book)(tmp_path / "small", limit=1 << 20)
    exporter = exporter_of(book, backend.endpoint)
    exporter.start()
    text = noise(4000)
    for first in range(0, 400, 10):
        names = (f"r{number}-aaaaaaaa" for number in range(first, first + 10))
        await book.append([(PREFILL_CORE, closed(name, external_request_id=text)) for name in names])
        book.journal.save_metrics_state(first + 10, b"fold")
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
    # The export may have read some of the others before they were trimmed.
    assert left | {"later-aaaaaaaa"} <= delivered
