"""A producer's socket, and what peers may do to it."""

from __future__ import annotations

import socket as sockets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

from tests.support.ec.rig import MODEL, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def dial(producer: ProducerWorker) -> Iterator[Callable[..., Any]]:
    """Connect a socket of one's own."""
    context = zmq.Context()
    made = []

    def connect(**options: int) -> Any:
        socket = context.socket(zmq.DEALER)
        made.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 60_000)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.connect(f"tcp://{producer.server.address}")
        return socket

    yield connect
    for socket in made:
        socket.close()
    context.term()


def rss() -> int:
    """Return the memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError


def content(producer: ProducerWorker, item: str) -> protocol.Content:
    """Return what it announces."""
    found = producer.cache.content(item)
    assert found is not None
    return found


def test_answers(producer: ProducerWorker, dial: Callable[..., Any]) -> None:
    """A hit, a miss, a chunk."""
    sent = tensor(4)
    producer.save("a", sent)
    socket = dial()
    socket.send(protocol.encode(protocol.Probe(1, MODEL, "a")))
    have = protocol.decode_answer(socket.recv())
    assert have == protocol.Have(1, MODEL, content(producer, "a"))
    socket.send(protocol.encode(protocol.Probe(2, MODEL, "b")))
    assert protocol.decode_answer(socket.recv()) == protocol.Miss(2)
    socket.send(protocol.encode(protocol.Fetch(3, MODEL, have.content.crc, 8, 100, "a")))
    header, payload = socket.recv_multipart()
    assert protocol.decode_answer(header) == protocol.Chunk(3, have.content.crc, 8, 100)
    assert payload == sent.numpy().tobytes()[8:108]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", protocol.Reason.MALFORMED),
        (b"GET / HTTP/1.1\r\n", protocol.Reason.MALFORMED),
        (protocol.encode(protocol.Miss(9)), protocol.Reason.MALFORMED),
        (protocol.encode(protocol.Probe(9, MODEL, "a")).replace(b"PE\1", b"PE\2"), protocol.Reason.VERSION),
        (protocol.encode(protocol.Probe(9, bytes(16), "a")), protocol.Reason.MODEL),
        (protocol.encode(protocol.Fetch(9, MODEL, 0, 0, 4, "a")), protocol.Reason.CHANGED),
        (
            protocol.encode(protocol.Probe(9, MODEL, "x" * protocol.ITEM_MAX)) + b"x",
            protocol.Reason.MALFORMED,
        ),
    ],
)
def test_what_is_refused(
    producer: ProducerWorker, dial: Callable[..., Any], message: bytes, reason: protocol.Reason
) -> None:
    """With a reason, and the tag where there was one."""
    producer.save("a", tensor(4))
    socket = dial()
    socket.send(message)
    answer = protocol.decode_answer(socket.recv())
    assert isinstance(answer, protocol.Refused)
    assert answer.reason is reason
    assert answer.text
    assert answer.tag == (9 if message.startswith(b"PE") else 0)


@pytest.mark.parametrize(("offset", "length"), [(4096, 1), (0, 4097), (2**63, 1)])
def test_bytes_beyond_the_end(
    producer: ProducerWorker, dial: Callable[..., Any], offset: int, length: int
) -> None:
    """Nothing but the item is ever sent."""
    producer.save("a", tensor(4))
    socket = dial()
    socket.send(protocol.encode(protocol.Fetch(1, MODEL, content(producer, "a").crc, offset, length, "a")))
    answer = protocol.decode_answer(socket.recv())
    assert isinstance(answer, protocol.Refused)
    assert answer.reason is protocol.Reason.TOO_LARGE


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=4), max_size=5))
def test_any_frames(producer: ProducerWorker, dial: Callable[..., Any], messages: list[list[bytes]]) -> None:
    """Get an error or nothing; who asks properly afterwards is answered."""
    socket = dial()
    for frames in messages:
        socket.send_multipart(frames)
    socket.send(protocol.encode(protocol.Probe(77, MODEL, "a")))
    while True:
        answer = protocol.decode_answer(socket.recv())
        if answer.tag == 77:
            assert answer == protocol.Miss(77)
            return
        assert isinstance(answer, (protocol.Refused, protocol.Miss))


@pytest.mark.parametrize("raw", [b"\0" * 100_000, b"GET / HTTP/1.1\r\n\r\n" * 1000, bytes(range(256)) * 100])
def test_what_is_not_zeromq(producer: ProducerWorker, dial: Callable[..., Any], raw: bytes) -> None:
    """Is dropped by libzmq; others are served."""
    host, _, port = producer.server.address.rpartition(":")
    with sockets.create_connection((host, int(port))) as stranger:
        stranger.settimeout(0.3)  # libzmq may well wait for more
        try:
            stranger.sendall(raw)
            while stranger.recv(1 << 16):
                pass
        except OSError:
            pass
    socket = dial()
    socket.send(protocol.encode(protocol.Probe(1, MODEL, "a")))
    assert protocol.decode_answer(socket.recv()) == protocol.Miss(1)


def test_an_oversize_message_costs_its_connection(producer: ProducerWorker, dial: Callable[..., Any]) -> None:
    """Before it is in memory."""
    before = rss()
    bad = dial(RECONNECT_IVL=-1)
    bad.send(bytes(64 << 20))
    monitor_done = dial()
    monitor_done.send(protocol.encode(protocol.Probe(1, MODEL, "a")))
    assert protocol.decode_answer(monitor_done.recv()) == protocol.Miss(1)
    bad.setsockopt(zmq.RCVTIMEO, 200)
    with pytest.raises(zmq.Again):
        bad.recv()
    assert rss() - before < 96 << 20  # what the sender itself holds


def test_a_peer_that_asks_and_does_not_read(producer: ProducerWorker, dial: Callable[..., Any]) -> None:
    """Gets a bounded queue, of references to the cache's memory; then its answers are dropped and counted."""
    producer.save("big", tensor(1024))  # a chunk
    before = rss()
    socket = dial(RCVHWM=1, RCVBUF=1 << 16, SNDHWM=0)
    crc = content(producer, "big").crc
    for tag in range(5_000):
        socket.send(protocol.encode(protocol.Fetch(tag, MODEL, crc, 0, 1 << 20, "big")))
    wait_for(lambda: producer.server._responder.counts["chunk"] == 5_000)
    assert producer.server.counts["slow_peer"] > 4_000
    assert rss() - before < 200 << 20  # of 5 GB that were asked for
    with rig(producer.server.address) as consumer:
        consumer.wait(request("r", feature("big", 1024)))
        assert consumer.consumer.has("big")


def test_what_slow_peers_have_not_read_is_not_overwritten() -> None:
    """They can keep new items out while they are connected; the memory never grows, and the bytes stay right."""
    with publisher(capacity=6 << 20) as producer:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        for name, value in {"LINGER": 0, "RCVHWM": 1, "RCVBUF": 1 << 16, "RCVTIMEO": 60_000}.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.connect(f"tcp://{producer.server.address}")
        sent = tensor(4096)  # four chunks, more than the connection's buffers take
        producer.save("slow", sent)
        crc = content(producer, "slow").crc
        for round_ in range(4):
            for chunk in range(4):
                socket.send(protocol.encode(protocol.Fetch(round_, MODEL, crc, chunk << 20, 1 << 20, "slow")))
        wait_for(lambda: producer.server._responder.counts["chunk"] == 16)
        for index in range(12):
            producer.save(f"i{index}", tensor(1000, seed=index))
        assert producer.cache.touch("slow")
        assert not producer.cache.touch("i0")
        producer.save("large", tensor(4096, seed=1))
        assert not producer.cache.touch("large")
        for chunk in range(16):
            header, payload = socket.recv_multipart()
            answer = protocol.decode_answer(header)
            assert isinstance(answer, protocol.Chunk)
            assert answer.offset == (chunk % 4) << 20
            assert payload == sent.numpy().tobytes()[answer.offset :][: 1 << 20]
        socket.close()
        context.term()

        def room() -> bool:
            producer.save("large", tensor(4096, seed=1))
            return producer.cache.touch("large")

        wait_for(room)


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), ("no such host", 0)])
def test_an_address_that_is_not_ours(host: str, port: int) -> None:
    """Is refused at start, with what to set."""
    with pytest.raises(ValueError, match=r"cannot listen at .*ec_ip"):
        ProducerWorker(host, port, MODEL, 1 << 20)


def test_a_port_that_is_taken(producer: ProducerWorker) -> None:
    """Is refused at start, with what to set."""
    with pytest.raises(ValueError, match=r"Address already in use.*ec_port"):
        ProducerWorker("127.0.0.1", int(producer.server.address.rpartition(":")[2]), MODEL, 1 << 20)


def test_ipv6() -> None:
    """Both sides speak it."""
    if not sockets.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        made = ProducerWorker("::1", 0, MODEL, 1 << 20)
    except ValueError:
        pytest.skip("no IPv6 loopback here")
    try:
        made.save("a", tensor(4))
        with rig(made.server.address) as consumer:
            consumer.wait(request("r", feature("a", 4)))
            assert consumer.consumer.has("a")
    finally:
        made.close()


def test_outputs_that_cannot_travel(producer: ProducerWorker) -> None:
    """Are not kept, and nothing breaks."""
    import torch

    producer.save("three", torch.zeros(2, 2, 2))
    producer.save("empty", torch.zeros(0, 4))
    producer.save("integers", torch.zeros(2, 2, dtype=torch.int64))
    producer.save("x" * 600, torch.zeros(2, 2))
    assert producer.skipped == 4
    assert len(producer.cache) == 0
