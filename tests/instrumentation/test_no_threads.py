"""A system that has no thread left: nothing is raised into the host, nothing leaks, and it is tried again."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.runtime import START_AGAIN
from penstock.instrumentation.telemetry.exporter import METHOD
from penstock.instrumentation.transport.grpc_stream import Stream
from penstock.proto.v1.ingest_pb2 import Ack

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import emit_failure

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuse the threads whose names are in the list that is returned."""
    names: list[str] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return names


def test_exporter_is_started_later(
    agent: FakeAgent, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, starved: list[str]
) -> None:
    """The first entries wait; when as many have come again and there is a thread, all are delivered."""
    monkeypatch.setattr(guard, "raising", False)
    starved.append("penstock-exporter")
    for number in range(START_AGAIN):
        emit_failure(runtime, f"r-{number}")
    # Others of the process may have counted, too: on a loaded machine a runtime of another test is still ending.
    assert guard.counts.drain()["runtime.start", "RuntimeError"] == 1
    starved.clear()
    emit_failure(runtime, "one more")
    emit_failure(runtime, "and one")
    agent.wait(lambda: len(agent.received.entries()) == START_AGAIN + 2, "all entries")
    assert agent.received.lost() == {}


def test_stream_without_a_reader_leaves_no_thread(starved: list[str], directory: Path) -> None:
    """A stream whose reader cannot be started closes what it has opened."""
    before = set(threading.enumerate())
    starved.append("penstock-reader")
    with pytest.raises(RuntimeError, match="thread"):
        Stream(f"unix://{directory}/missing.sock", METHOD, Ack.FromString, queue.SimpleQueue())
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread waits for requests")
