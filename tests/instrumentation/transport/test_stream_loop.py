"""The loop of all streams: it begins and ends with its users, and leaves nothing."""

from __future__ import annotations

import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.instrumentation.core import STREAMS_THREAD, guard
from penstock.instrumentation.transport.loop_stream import LoopStream
from penstock.instrumentation.transport.stream_loop import LoopEndedError, StreamLoop
from penstock.instrumentation.transport.streams import Streams
from penstock.instrumentation.transport.threaded_stream import ThreadedStream
from penstock.proto.v1.policy_pb2 import Push, Report, Subscribe

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure
from tests.support.script import run_script
from tests.support.silent_socket import silent_socket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent

METHOD = "/penstock.v1.Ingest/Publish"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the begin of a loop and for the status of a call, however busy the machine is."""
    monkeypatch.setattr("penstock.instrumentation.transport.stream_loop._BEGIN_WITHIN", 60.0)
    monkeypatch.setattr("penstock.instrumentation.transport.loop_stream._STATUS_WITHIN", 60.0)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == STREAMS_THREAD]


def test_one_thread_for_both_streams(agent: FakeAgent, runtime: Runtime) -> None:
    """Exporter and policy client share it; it ends with the second of them."""
    runtime.start_policy(("kv_load_failure",))
    emit_failure(runtime, "r")
    agent.wait(lambda: agent.received.reports and agent.received.entries(), "both streams are in use")
    assert len(_threads()) == 1
    runtime.stop(60.0)
    wait_until(lambda: not _threads(), "the thread has ended")


def test_agent_that_is_away_keeps_the_loop(agent: FakeAgent, runtime: Runtime) -> None:
    """From one attempt to the next the loop stays: a host's grpc.aio would keep each that has ended."""
    emit_failure(runtime, "before")
    wait_until(lambda: acknowledged(runtime), "the stream is in use")
    before = _threads()
    agent.restart()
    emit_failure(runtime, "after")
    wait_until(lambda: acknowledged(runtime), "another stream is in use")
    assert _threads() == before


@pytest.mark.parametrize("listens", [False, True], ids=["missing", "silent"])
def test_streams_that_come_to_nothing_leave_nothing(directory: Path, listens: bool) -> None:
    """Also with requests that the core has not taken: no descriptor and no thread is left."""
    script = """
    import os, queue, socket, sys, threading, time
    from penstock.instrumentation.core import wait_for_grpc_to_end
    from penstock.instrumentation.transport import stream_loop
    from penstock.instrumentation.transport.loop_stream import LoopStream
    from penstock.instrumentation.transport.streams import Streams

    stream_loop._BEGIN_WITHIN = 60.0
    endpoint, listens = sys.argv[1], sys.argv[2] == "True"
    inbox, streams = queue.SimpleQueue(), Streams()
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as silent:
        if listens:
            silent.bind(endpoint)
            silent.listen(64)
        for _ in range(20):
            stream = streams.open(f"unix://{endpoint}", "/penstock.v1.Ingest/Publish", bytes, inbox)
            assert isinstance(stream, LoopStream)
            for size in (0, 500_000, 500_000):
                stream.send(b"x" * size)
            if not listens:
                assert inbox.get(timeout=60).content.code == "UNAVAILABLE"
            stream.close()
        streams.leave()
    # The core keeps a connection that was not answered until its peer ends it.
    assert wait_for_grpc_to_end(time.monotonic() + 60)
    assert threading.enumerate() == [threading.main_thread()]
    assert len(os.listdir("/proc/self/fd")) <= before
    """
    run_script(script, f"{directory}/agent.sock", str(listens))


def test_an_error_of_the_loop_ends_its_streams(directory: Path) -> None:
    """The owner hears of it, and its next stream has another loop."""
    with silent_socket(directory) as address:
        streams, inbox = Streams(), queue.SimpleQueue[Any]()
        stream = streams.open(address, METHOD, bytes, inbox)
        assert isinstance(stream, LoopStream)
        stream._loop.call_soon(lambda: sys.exit(3))
        ended = inbox.get(timeout=60)
        assert ended.sender is stream
        wait_until(lambda: not _threads(), "the loop has ended")
        assert guard.counts.drain() == {("streams", "SystemExit"): 1}
        other = streams.open(f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
        assert inbox.get(timeout=60).content.code == "UNAVAILABLE"
        stream.close()
        other.close()
        streams.leave()


def test_nothing_of_a_loop_that_has_ended_comes_to_the_next(directory: Path) -> None:
    """What its calls had asked of grpc's core is over with it: else the next loop, or the host's, raises."""
    with silent_socket(directory) as address:
        for number in range(60):
            streams, inbox = Streams(), queue.SimpleQueue[Any]()
            stream = streams.open(address, METHOD, bytes, inbox)
            assert isinstance(stream, LoopStream)
            if number % 2:
                stream.send(b"x" * 1_000)
            if number % 3 == 0:
                stream._loop.call_soon(lambda: sys.exit(3))
                assert inbox.get(timeout=60).sender is stream
            stream.close()
            streams.leave()
    wait_until(lambda: not _threads(), "the last loop has ended")
    assert guard.counts.drain() == {("streams", "SystemExit"): 20}


def test_a_stream_that_the_loop_has_not_begun_ends_too(directory: Path) -> None:
    """One is opened just before the loop's error: its owner hears of it as well, and no other loop of a later one."""
    streams, inbox = Streams(), queue.SimpleQueue[Any]()
    first = streams.open(f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
    assert isinstance(first, LoopStream)
    assert inbox.get(timeout=60).sender is first
    opened = threading.Event()

    def end_late() -> None:
        opened.wait(60)
        sys.exit(3)

    first._loop.call_soon(end_late)
    second = streams.open(f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
    opened.set()
    ended = inbox.get(timeout=60)
    assert ended.sender is second
    wait_until(lambda: not _threads(), "the loop has ended")
    with pytest.raises(LoopEndedError):
        LoopStream(first._loop, f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
    assert guard.counts.drain() == {("streams", "SystemExit"): 1}
    streams.leave()


def test_a_stream_has_another_loop_at_once(directory: Path) -> None:
    """Its owner hears of the end before the loop's thread has ended, and opens the next stream."""
    streams, inbox = Streams(), queue.SimpleQueue[Any]()
    for _ in range(20):
        stream = streams.open(f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
        assert isinstance(stream, LoopStream)
        stream._loop.call_soon(lambda: sys.exit(3))
        assert inbox.get(timeout=60).sender is stream
        stream.close()
    streams.leave()
    wait_until(lambda: not _threads(), "the last loop has ended")
    assert guard.counts.drain() == {("streams", "SystemExit"): 20}


@pytest.mark.parametrize("failures", [1, 2, 1_000])
def test_a_loop_that_cannot_go_on_tells_the_owners_of_its_streams(directory: Path, failures: int) -> None:
    """Where its end fails as well, for ever perhaps: a host may close descriptors that are not its own."""
    script = """
    import queue, socket, sys, threading, time
    from penstock.instrumentation.transport import stream_loop
    from penstock.instrumentation.transport.streams import Streams

    stream_loop._BEGIN_WITHIN = 60.0
    failures = int(sys.argv[2])
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(sys.argv[1])
        silent.listen(64)
        streams, inbox = Streams(), queue.SimpleQueue()
        stream = streams.open(f"unix://{sys.argv[1]}", "/penstock.v1.Ingest/Publish", bytes, inbox)
        selector = stream._loop._loop._selector
        select = selector.select

        def fail(timeout=None):
            global failures
            failures -= 1
            if failures >= 0:
                raise OSError(9, "Bad file descriptor")
            return select(timeout)

        selector.select = fail
        stream._loop.call_soon(int)
        assert inbox.get(timeout=60).content.code == "INTERNAL"
        stream.close()
        streams.leave()
        assert inbox.empty()
        while any(thread.name == "penstock-streams" for thread in threading.enumerate()):
            time.sleep(0.01)
    """
    run_script(script, f"{directory}/agent.sock", str(failures))


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED])
def test_the_agents_status_is_kept_while_messages_are_written(directory: Path, code: grpc.StatusCode) -> None:
    """A write that fails of the end is no reason of its own."""

    def end(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        context.abort(code, "the agent's reason")
        yield b""

    server = grpc.server(ThreadPoolExecutor(4))
    handler: Any = grpc.stream_stream_rpc_method_handler(end)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("penstock.v1.Ingest", {"Publish": handler}),)
    )
    server.add_insecure_port(f"unix://{directory}/agent.sock")
    server.start()
    streams = Streams()
    try:
        for _ in range(100):
            inbox = queue.SimpleQueue[Any]()
            stream = streams.open(f"unix://{directory}/agent.sock", METHOD, bytes, inbox)
            for _ in range(5):
                stream.send(b"x" * 1_000)
            while inbox.empty():
                stream.send(b"x")
                time.sleep(0.0002)
            ended = inbox.get().content
            assert (ended.code, ended.details) == (code.name, "the agent's reason")
            stream.close()
    finally:
        streams.leave()
        server.stop(None).wait()


def test_a_loop_that_begins_late_is_not_begun_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has ended, streams have threads of their own, at once; then there is a loop again."""
    begins, go = [], threading.Event()

    async def late(loop: StreamLoop) -> None:
        begins.append(loop)
        go.wait(60)

    with monkeypatch.context() as patch:
        patch.setattr(StreamLoop, "_serve", late)
        patch.setattr("penstock.instrumentation.transport.stream_loop._BEGIN_WITHIN", 0.1)
        for _ in range(3):
            streams, inbox = Streams(), queue.SimpleQueue[Any]()
            stream = streams.open(f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
            assert isinstance(stream, ThreadedStream)
            stream.close()
        try:
            wait_until(lambda: begins, "the loop's thread has begun")
            assert len(begins) == 1
        finally:
            go.set()
        wait_until(lambda: not _threads(), "the late loop has ended")
    stream = streams.open(f"unix://{directory}/missing.sock", METHOD, bytes, inbox)
    assert isinstance(stream, LoopStream)
    stream.close()
    streams.leave()


def test_an_answer_that_cannot_be_parsed_ends_the_stream(agent: FakeAgent) -> None:
    """The error is the end's text."""

    def refuse(answer: bytes) -> bytes:
        raise ValueError(f"{len(answer)} bytes")

    streams, inbox = Streams(), queue.SimpleQueue[Any]()
    stream = streams.open(agent.listen, "/penstock.v1.PolicyFeed/Watch", refuse, inbox)
    stream.send(Report(subscribe=Subscribe(epoch=1)).SerializeToString())
    agent.wait(lambda: agent.received.reports, "the agent has read it")
    agent.push(Push())
    ended = inbox.get(timeout=60).content
    assert ended.code == "INTERNAL"
    assert ended.details.startswith("ValueError")
    stream.close()
    streams.leave()
