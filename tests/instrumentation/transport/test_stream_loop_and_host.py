"""The loop of all streams beside a host: it disturbs no loop of the host's, and a host without threads goes on."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.instrumentation.core import guard
from penstock.instrumentation.transport.streams import loops_are_separate

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure
from tests.support.script import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.instrumentation.runtime import Runtime

    from tests.support.agent.fake_agent import FakeAgent


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
    assert run_script(script, f"unix://{directory}/missing.sock").stdout == "ThreadedStream\n" * 3


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
    said = run_script(script, f"unix://{directory}/missing.sock").stdout
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
