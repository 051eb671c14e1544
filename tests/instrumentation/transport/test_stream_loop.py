"""The loop of all streams: it begins and ends with its users, leaves nothing, and disturbs no loop of the host's."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.instrumentation.core import STREAMS_THREAD, guard
from penstock.instrumentation.transport.loop_stream import LoopStream
from penstock.instrumentation.transport.stream_loop import LoopEndedError, StreamLoop
from penstock.instrumentation.transport.streams import Streams, loops_are_separate
from penstock.instrumentation.transport.threaded_stream import ThreadedStream
from penstock.proto.v1.policy_pb2 import Push, Report, Subscribe

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent

METHOD = "/penstock.v1.Ingest/Publish"


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


def _run(script: str, *arguments: str) -> str:
    """Run *script* to its end in a process where nothing else uses grpc; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("listens", [False, True], ids=["missing", "silent"])
def test_streams_that_come_to_nothing_leave_nothing(directory: Path, listens: bool) -> None:
    """Also with requests that the core has not taken: no descriptor and no thread is left."""
    script = """
    import os, queue, socket, sys, threading, time
    from penstock.instrumentation.core import wait_for_grpc_to_end
    from penstock.instrumentation.transport.loop_stream import LoopStream
    from penstock.instrumentation.transport.streams import Streams

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
    _run(script, f"{directory}/agent.sock", str(listens))


def test_an_error_of_the_loop_ends_its_streams(directory: Path) -> None:
    """The owner hears of it, and its next stream has another loop."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{directory}/agent.sock")
        silent.listen(64)
        streams, inbox = Streams(), queue.SimpleQueue[Any]()
        stream = streams.open(f"unix://{directory}/agent.sock", METHOD, bytes, inbox)
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
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{directory}/agent.sock")
        silent.listen(64)
        for number in range(60):
            streams, inbox = Streams(), queue.SimpleQueue[Any]()
            stream = streams.open(f"unix://{directory}/agent.sock", METHOD, bytes, inbox)
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
    from penstock.instrumentation.transport.streams import Streams

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
    _run(script, f"{directory}/agent.sock", str(failures))


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
        assert len(begins) == 1
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


@contextmanager
def _host_with_a_loop() -> Iterator[tuple[str, list[str]]]:
    """Serve with grpc.aio on a loop of the host's; yield its address, and what its loop complains of."""
    complaints: list[str] = []
    ready: queue.SimpleQueue[tuple[str, Callable[[], object]]] = queue.SimpleQueue()

    async def echo(request: bytes, _: Any) -> bytes:
        return request

    async def serve() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(echo)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.Host", {"Echo": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.put((f"127.0.0.1:{port}", lambda: loop.call_soon_threadsafe(done.set)))
        await done.wait()
        await server.stop(None)

    host = threading.Thread(target=lambda: asyncio.run(serve()))
    host.start()
    address, end = ready.get(timeout=60)
    try:
        yield address, complaints
    finally:
        end()
        host.join(60)


def test_a_loop_of_the_hosts_is_not_disturbed(agent: FakeAgent, runtime: Runtime) -> None:
    """A host that uses grpc.aio itself is served while our streams are in use, and neither loop complains."""
    assert agent is not None
    with _host_with_a_loop() as (address, complaints), grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/x.Host/Echo")
        for number in range(50):
            emit_failure(runtime, f"r-{number}")
            for part in range(4):
                assert call(b"%d" % part, timeout=60) == b"%d" % part
        wait_until(lambda: acknowledged(runtime), "all entries are acknowledged")
        runtime.stop(60.0)
        assert call(b"after", timeout=60) == b"after"
        assert complaints == []
    assert guard.counts.drain() == {}


def test_a_process_where_the_poller_does_not_begin(directory: Path) -> None:
    """Without a thread for grpc's poller each stream has threads of its own, and grpc.aio is not tried again."""
    script = """
    import queue, sys, threading
    from penstock.instrumentation.transport.streams import Streams

    start, pollers = threading.Thread.start, []

    def refuse(thread):
        if "_poll_wrapper" in repr(getattr(thread, "_target", None)):
            pollers.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse
    for _ in range(3):
        streams, inbox = Streams(), queue.SimpleQueue()
        stream = streams.open(sys.argv[1], "/penstock.v1.Ingest/Publish", bytes, inbox)
        print(type(stream).__name__)
        assert inbox.get(timeout=60).content.code == "UNAVAILABLE"
        stream.close()
        streams.leave()
    assert len(pollers) == 1
    """
    assert _run(script, f"unix://{directory}/missing.sock") == "ThreadedStream\n" * 3


def test_a_host_may_use_grpc_where_no_thread_is_left_for_ours(directory: Path) -> None:
    """Its own grpc.aio works: ours was not begun, and is tried again."""
    script = """
    import asyncio, queue, sys, threading
    import grpc
    from penstock.instrumentation.transport.streams import Streams

    start, refused = threading.Thread.start, []

    def refuse(thread):
        if thread.name == "penstock-streams" and len(threading.enumerate()) > 4 and len(refused) < 2:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse

    async def ask():
        async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
            try:
                await channel.unary_unary("/x.Host/Echo")(b"")
            except grpc.aio.AioRpcError as error:
                return error.code().name

    for _ in range(3):
        streams, inbox = Streams(), queue.SimpleQueue()
        try:
            stream = streams.open(sys.argv[1], "/penstock.v1.Ingest/Publish", bytes, inbox)
        except RuntimeError as error:
            print(error, asyncio.run(ask()))
            continue
        print(type(stream).__name__, asyncio.run(ask()))
        assert inbox.get(timeout=60).content.code == "UNAVAILABLE"
        stream.close()
        streams.leave()
    """
    said = _run(script, f"unix://{directory}/missing.sock")
    assert said == "can't start new thread UNAVAILABLE\n" * 2 + "LoopStream UNAVAILABLE\n"


@pytest.mark.parametrize(
    ("version", "separate"),
    [
        ("1.71.0", False),
        ("1.78.1", False),
        ("1.80.0", True),
        ("1.85.3", True),
        ("2.0.0", True),
        ("1.80rc1", False),
        ("unknown", False),
    ],
)
def test_versions_with_separate_loops(version: str, separate: bool) -> None:
    """A version that cannot be read counts as an old one."""
    assert loops_are_separate(version) is separate
