"""The tracing peer: a real server that counts, and one that keeps what it has answered."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.load import otlp_load
from benchmarks.load.otlp_peer import running_peer

# Of a source, between two calls; a second in a benchmark.
DELAY = 0.2


@pytest.mark.parametrize("keeps", [False, True])
def test_every_span_is_taken_and_what_is_kept_is_on_disk(keeps, monkeypatch):
    """From several sources; a call's body is in the database when it has been answered."""
    monkeypatch.setattr(otlp_load, "URGENT_DELAY", DELAY)
    with running_peer(keeps=keeps) as peer:
        found = asyncio.run(
            otlp_load.load(peer, sources=3, rate=300, seconds=2.5 * DELAY, warm_up=1.5 * DELAY)
        )
        used = peer.used()
        assert found.answers
        assert min(found.answers) > 0
        assert used.cpu_seconds > 0
        assert found.memory > 1
        if not keeps:
            assert used.disk == 0
            return
        assert used.disk > 0
        assert isinstance(peer.process.args, list)
        with sqlite3.connect(f"file:{Path(peer.process.args[-1])}/spans.db?mode=ro", uri=True) as database:
            bodies = [body for (body,) in database.execute("SELECT body FROM calls")]
        assert sum(map(_spans, bodies)) == used.spans > 0
    assert not Path(peer.process.args[-1]).exists()


def _spans(body: bytes) -> int:
    request = ExportTraceServiceRequest.FromString(body)
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
