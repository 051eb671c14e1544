"""A system that has no thread left: nothing is raised into the host, nothing leaks, and it is tried again."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import pytest
from penstock.instrumentation.core import STREAMS_THREAD
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.runtime import START_AGAIN
from penstock.instrumentation.telemetry.exporter import METHOD
from penstock.instrumentation.transport import Message
from penstock.instrumentation.transport.loop_stream import LoopStream
from penstock.instrumentation.transport.streams import Streams
from penstock.instrumentation.transport.threaded_stream import ThreadedStream
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
        ThreadedStream(f"unix://{directory}/missing.sock", METHOD, Ack.FromString, queue.SimpleQueue())
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread waits for requests")


def test_streams_without_a_loop_leave_no_thread(starved: list[str], directory: Path) -> None:
    """A loop whose thread cannot be started is tried again by the next stream."""
    before = set(threading.enumerate())
    streams, inbox = Streams(), queue.SimpleQueue[Message]()
    starved.append(STREAMS_THREAD)
    with pytest.raises(RuntimeError, match="thread"):
        streams.open(f"unix://{directory}/missing.sock", METHOD, Ack.FromString, inbox)
    assert set(threading.enumerate()) <= before
    starved.clear()
    stream = streams.open(f"unix://{directory}/missing.sock", METHOD, Ack.FromString, inbox)
    assert isinstance(stream, LoopStream)
    stream.close()
    streams.leave()
    wait_until(lambda: set(threading.enumerate()) <= before, "the loop's thread has ended")
