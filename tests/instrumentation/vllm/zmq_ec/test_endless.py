"""Messages without an end: libzmq collects them, and none of its limits holds for them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import zmq
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.producer import server as server_module
from penstock.instrumentation.vllm.zmq_ec.wire import protocol
from penstock.instrumentation.vllm.zmq_ec.wire.message_bound import Undelivered

from tests.support.ec.endless_peer import frame, resident, send_endlessly, shake_hands
from tests.support.ec.rig import MODEL, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker

ENDLESS = 256 << 20
BOUND = 64 << 20


@contextlib.contextmanager
def _process(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a process of tests/support; yield it and its first line."""
    with subprocess.Popen(
        [sys.executable, "-m", f"tests.support.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child, _line(child)
        finally:
            child.kill()


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _call(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(60)
    shake_hands(connection, "DEALER")
    return connection


def test_a_producer_drops_who_sends_one() -> None:
    """Its memory stays bounded however small the frames are, and others are served meanwhile."""
    with _process("ec_producer", "0", "64", "-1") as (child, address), _dealer(address) as other:
        other.send(protocol.encode(protocol.Probe(0, MODEL, "a")))
        assert isinstance(protocol.decode_answer(other.recv()), protocol.Have)
        before = resident(child.pid)
        for size in (0, 1, 300, protocol.HEADER_MAX) * 2:
            with _call(address) as hostile, ThreadPoolExecutor(1) as pool:
                sending = pool.submit(send_endlessly, hostile, size, ENDLESS)
                other.send(protocol.encode(protocol.Probe(size, MODEL, "a")))
                assert protocol.decode_answer(other.recv()).tag == size
                assert sending.result() < ENDLESS
        assert resident(child.pid) - before < BOUND


def test_a_consumer_drops_who_sends_one() -> None:
    """The probe has failed, and the request goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with _process("ec_consumer", address) as (child, _):
            assert child.stdin is not None
            before = resident(child.pid)
            for size in (0, 300, protocol.CHUNK_MAX):
                child.stdin.write("\n")
                child.stdin.flush()
                hostile, _ = listening.accept()
                with hostile:
                    hostile.settimeout(60)
                    shake_hands(hostile, "ROUTER")
                    assert send_endlessly(hostile, size, ENDLESS) < ENDLESS
                error_type, text = json.loads(_line(child))
                assert error_type == c.ERROR_TYPE_CORRUPT
                assert "without an end" in text
            assert resident(child.pid) - before < BOUND


@contextlib.contextmanager
def _dealer(address: str) -> Iterator[Any]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 60_000)
    socket.connect(f"tcp://{address}")
    try:
        yield socket
    finally:
        socket.close(linger=0)
        context.term()


def test_long_messages_of_ours_are_none() -> None:
    """Hundreds of whole chunks and requests over one connection are nobody's backlog."""
    sent = tensor(40_000)  # 40 chunks
    with (
        publisher(capacity=128 << 20) as producer,
        rig(producer.server.address, region_bytes=128 << 20) as consumer,
    ):
        for number in range(3):
            producer.save(f"i{number}", sent)
            consumer.wait(request("r", feature(f"i{number}", 40_000)))
            assert consumer.consumer.has(f"i{number}")
        assert not producer.server.counts


def test_whole_messages_that_wait_are_none(producer: ProducerWorker) -> None:
    """As many as libzmq queues, of the longest kind there is, while the server has other things to do."""
    go = threading.Event()
    answer = producer.server._responder.answer
    producer.server._responder.answer = lambda frame: (go.wait(60), answer(frame))[1]  # type: ignore[method-assign]
    longest = frame(protocol.encode(protocol.Probe(1, MODEL, "x" * protocol.ITEM_MAX)))
    with _call(producer.server.address) as peer:
        peer.sendall(longest * 200)
        go.set()
        wait_for(lambda: producer.server._responder.counts["miss"] == 200)
    assert not producer.server.counts


def test_one_connection_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is cut; those that are there are served, and when one of them goes there is room again."""
    monkeypatch.setattr(server_module, "_CONNECTIONS", 2)
    probe = frame(protocol.encode(protocol.Probe(1, MODEL, "a")))
    with publisher() as producer, _call(producer.server.address) as first:
        second = _call(producer.server.address)
        host, _, port = producer.server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as third:
            third.settimeout(60)
            try:
                while third.recv(1024):
                    pass
            except ConnectionError:
                pass
        wait_for(lambda: producer.server.counts["too_many"] == 1)
        second.close()
        first.sendall(probe)
        assert first.recv(1024)

        def admitted() -> bool:
            try:
                with _call(producer.server.address) as again:
                    again.sendall(probe)
                    return bool(again.recv(1024))
            except (OSError, AssertionError):
                return False

        wait_for(admitted)


def test_a_descriptor_that_is_another_one_now() -> None:
    """Is left alone, however much it has sent: libzmq closes its descriptors without asking us."""
    cut: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as others:
        port = ours.getsockname()[1]
        watch = Undelivered(
            0, is_ours=lambda each: each.getsockname()[1] == port, on_cut=lambda why, _: cut.append(why)
        )
        with (
            socket.create_connection(ours.getsockname()) as caller,
            socket.create_connection(others.getsockname()) as stranger,
        ):
            accepted, innocent = ours.accept()[0], others.accept()[0]
            with accepted, innocent:
                watch._opened(accepted.fileno())
                caller.sendall(bytes(100))
                watch.look()
                os.dup2(innocent.fileno(), accepted.fileno())
                stranger.sendall(bytes(1 << 20))
                assert len(innocent.recv(1 << 20, socket.MSG_WAITALL)) == 1 << 20
                watch._stirred.add(accepted.fileno())
                watch._look_after = 0.0
                watch.look()
                stranger.sendall(b"x")
                assert innocent.recv(1) == b"x"
        watch.close()
    assert cut == []
