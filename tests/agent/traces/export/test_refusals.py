"""The exporter with a real backend that refuses or never answers."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.export.delivery import AMBIGUOUS_TRIES
from penstock.agent.traces.export.exporter import TraceExporter
from penstock.agent.traces.export.otlp_config import ExportSettings
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.sdk_spans import SpanConverter

from tests.support.agent.stories import (
    MS,
    PREFILL_CORE,
    closed,
    decode_story,
    prefill_story,
)
from tests.support.otlp.backend import Refusal
from tests.support.otlp.exporting import (
    GOOD_SPANS,
    LIMITS,
    exporting,
    ids_of,
    until,
)

AMBIGUOUS = [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN]


@pytest.fixture
def no_pauses(monkeypatch):
    """Remove the pauses between retries."""
    monkeypatch.setattr("penstock.agent.traces.export.delivery._FIRST_BACKOFF", 0.001)
    monkeypatch.setattr("penstock.agent.traces.export.delivery._MAX_BACKOFF", 0.002)


@pytest.mark.parametrize("code", AMBIGUOUS)
@pytest.mark.usefixtures("no_pauses")
async def test_spans_that_are_always_refused_ambiguously(book, backend, code):
    """Such spans are dropped and counted; the others of their calls arrive once."""
    backend.refuse(lambda spans: code if any(span.name == semconv.KV_LOAD for span in spans) else None)
    await book.append(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
        await book.add(PREFILL_CORE, closed("later-aaaaaaaa"))
        await until(lambda: exporter.status().low == 10, "the export goes on")
        status = exporter.status()
    assert (status.spans_refused, status.spans_exported, status.error) == (1, GOOD_SPANS, "")
    assert len(set(ids_of(backend.spans))) == len(backend.spans) == GOOD_SPANS


@pytest.mark.usefixtures("no_pauses")
async def test_a_backend_that_fails_most_of_the_time(book, backend):
    """It accepts one call in eight while entries trickle in: nothing is lost, and each span comes once."""
    backend.refuse(lambda _spans: None if backend.calls % AMBIGUOUS_TRIES == 0 else grpc.StatusCode.INTERNAL)
    count = 40
    async with exporting(book, backend.endpoint, limits=AssemblyLimits(grace_nano=MS)) as exporter:
        for number in range(count):
            calls = backend.calls
            await book.add(PREFILL_CORE, closed(f"r{number}-aaaaaaaa"))
            if number % 4 == 0:
                # Whatever is under way then: the next entries are in other calls.
                await asyncio.to_thread(
                    backend.wait, lambda _, calls=calls: backend.calls > calls, "it is asked again"
                )
        await until(lambda: exporter.status().low == count + 1, "everything is done with")
        assert exporter.status().spans_refused == 0
    assert len(set(ids_of(backend.spans))) == len(backend.spans) == count


@pytest.mark.usefixtures("no_pauses")
async def test_what_is_refused_ambiguously_outlives_a_restart(book, backend):
    """The cursor stays before a refused span until it is accepted or dropped."""
    backend.refuse(
        lambda _spans: grpc.StatusCode.UNAVAILABLE if backend.calls > 5 else grpc.StatusCode.INTERNAL
    )
    await book.append(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await asyncio.to_thread(backend.wait, lambda _: backend.calls > 5, "it was asked")
        await until(lambda: exporter.status().error, "the refusal shows")
        status = exporter.status()
    assert (status.spans_refused, status.low) == (0, 1)
    assert status.oldest_unexported_unix_nano > 0
    backend.refuse(lambda _spans: None)
    await book.reopen()
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
    assert len(set(ids_of(backend.spans))) == len(backend.spans) == GOOD_SPANS


@pytest.mark.usefixtures("no_pauses")
async def test_a_span_that_cannot_be_converted(book, backend, monkeypatch):
    """An exception while converting a span drops only that span."""
    convert = SpanConverter.readable

    def readable(self, span, *, replayed):
        if span.name == semconv.KV_LOAD:
            raise OverflowError("boom")
        return convert(self, span, replayed=replayed)

    monkeypatch.setattr(SpanConverter, "readable", readable)
    await book.append(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
        assert (exporter.status().spans_refused, exporter.status().spans_exported) == (1, GOOD_SPANS - 1)


async def test_a_message_that_is_too_large_is_halved(book, backend):
    """The message is halved although its code means a busy backend; no span is dropped."""
    backend.refuse(
        lambda spans: (
            Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, details="Received message larger than max (9 vs. 4)")
            if len(spans) > 2
            else None
        )
    )
    await book.append(prefill_story(), decode_story())
    async with exporting(book, backend.endpoint) as exporter:
        await until(lambda: exporter.status().low == 9, "everything is done with")
        assert exporter.status().spans_refused == 0
    assert len(backend.spans) == GOOD_SPANS


@pytest.fixture
def patience(monkeypatch):
    """Wait for the end of a call that is interrupted, however busy the machine is."""
    monkeypatch.setattr("penstock.agent.traces.export.exporter._INTERRUPT_SECONDS", 60.0)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.usefixtures("patience")
async def test_a_backend_that_never_answers(book, protocol):
    """Each call ends at its deadline; commits do not wait for it, and a stop ends a call that is under way."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        exporter = TraceExporter(book.journal, ExportSettings(endpoint, protocol, timeout=0.3), limits=LIMITS)
        exporter.start()
        await book.append(prefill_story())
        await until(lambda: exporter.status().error, "the failure shows")
        await asyncio.wait_for(book.append(decode_story()), 60)
        await asyncio.to_thread(exporter.stop, 0.1)
        assert not exporter._thread.is_alive()
    status = exporter.status()
    assert status.spans_exported == status.spans_refused == 0
    assert status.oldest_unexported_unix_nano > 0


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.usefixtures("patience")
async def test_a_stop_interrupts_a_call(book, protocol):
    """A stop ends a call whose time-out is minutes away."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        exporter = TraceExporter(book.journal, ExportSettings(endpoint, protocol, timeout=600), limits=LIMITS)
        exporter.start()
        await book.append(prefill_story())
        connection, _ = await asyncio.to_thread(hole.accept)
        with connection:
            await asyncio.to_thread(exporter.stop, 0.2)
            assert not exporter._thread.is_alive()
            exporter.stop(0.1)
