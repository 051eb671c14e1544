"""What one consumer may have of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.instrumentation.transport.background_thread import Backoff
from penstock.instrumentation.vllm.zmq_ec.producer import clients, server
from penstock.instrumentation.vllm.zmq_ec.producer.clients import FairShare
from penstock.instrumentation.vllm.zmq_ec.wire import protocol, sockets

from tests.support.ec.rig import MODEL, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


class Payload:
    """Something on its way."""


@settings(deadline=None)
@given(gaps=st.lists(st.floats(0, 2), max_size=10))
def test_no_peer_gets_more_than_the_rate(gaps: list[float]) -> None:
    """Over any time; and who stays below it gets all."""
    share, now, granted = FairShare(), 0.0, 0
    for gap in gaps:
        now += gap
        granted += sum(not share.exceeds_rate("a", now) for _ in range(3000))
        assert granted <= clients.RATE * (now + 1) + 1
    assert granted >= min(3000 * len(gaps), clients.RATE)
    assert not share.exceeds_rate("b", now)


def test_items_on_their_way() -> None:
    """So many, and as much as one likes of each; what has arrived makes room. None is too many while they are young."""
    share = FairShare()
    share.exceeds_rate("a", 0.0)
    underway = [Payload() for _ in range(clients.ITEMS_MAX)]
    for number, payload in enumerate(underway):
        assert not share.is_saturated("a", f"i{number}", 9.0)
        share.on_sent("a", f"i{number}", payload, 0.1 * number)
    late = clients.PATIENCE + 0.01
    assert not share.is_saturated("a", "more", late - 0.02)
    assert share.is_saturated("a", "more", late)
    assert not share.is_saturated("a", "i0", late)
    assert not share.is_saturated("b", "more", late)
    underway.pop(0)
    del payload
    assert not share.is_saturated("a", "more", 9.0)


def test_chunks_on_their_way() -> None:
    """However few items they are of."""
    share = FairShare()
    share.exceeds_rate("a", 0.0)
    underway = [Payload() for _ in range(clients.CHUNKS_MAX)]
    for payload in underway:
        share.on_sent("a", "i", payload, 0.0)
    assert share.is_saturated("a", "i", clients.PATIENCE)
    underway.clear()
    del payload
    assert not share.is_saturated("a", "i", clients.PATIENCE)


def test_the_peers_that_are_remembered() -> None:
    """The last of them."""
    share = FairShare()
    for number in range(clients.PEERS_MAX * 2):
        share.exceeds_rate(number, 0.0)
    assert len(share) == clients.PEERS_MAX


@pytest.fixture
def dealer() -> Iterator[Any]:
    """Be a consumer that does not read."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    for name, value in {"LINGER": 0, "RCVHWM": 1, "RCVBUF": 1 << 16, "RCVTIMEO": 60_000, "SNDHWM": 0}.items():
        socket.setsockopt(getattr(zmq, name), value)
    yield socket
    socket.close()
    context.term()


def _crc(producer: Any, item: str) -> int:
    found = producer.cache.content(item)
    assert found is not None
    return int(found.crc)


def test_one_that_does_not_read_cannot_keep_the_cache(dealer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for a part of each of twenty items and takes none: most are refused, and can be evicted."""
    monkeypatch.setattr(clients, "PATIENCE", 0.0)
    with publisher(capacity=64 << 20) as producer:
        for number in range(20):
            producer.save(f"i{number}", tensor(2048, seed=number))
        dealer.connect(f"tcp://{producer.server.address}")
        crcs = [_crc(producer, f"i{number}") for number in range(20)]
        for number, crc in enumerate(crcs):
            dealer.send(protocol.encode(protocol.Fetch(number, MODEL, crc, 0, 1 << 20, f"i{number}")))
        wait_for(lambda: producer.server._responder.counts["chunk"] == 20)
        refused = producer.server._responder.counts["busy"]
        # What is in the connection's buffers has gone; it is less than a few chunks.
        assert 0 < refused <= 20 - clients.ITEMS_MAX
        with rig(producer.server.address) as consumer:
            consumer.wait(request("r", feature("i19", 2048)))
            assert consumer.consumer.has("i19")


def test_requests_beyond_the_rate_are_dropped(dealer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted, and other peers are served."""
    monkeypatch.setattr(clients, "RATE", 100.0)
    with publisher() as producer:
        dealer.connect(f"tcp://{producer.server.address}")
        for tag in range(1_000):
            dealer.send(protocol.encode(protocol.Probe(tag, MODEL, "a")))
        wait_for(lambda: producer.server.counts["too_fast"])
        producer.save("a", tensor(4))
        with rig(producer.server.address) as consumer:
            consumer.wait(request("r", feature("a", 4)))
            assert consumer.consumer.has("a")


def test_one_that_takes_nothing_is_disconnected(dealer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is kept for it."""
    monkeypatch.setitem(sockets.KEEPALIVE, zmq.TCP_MAXRT, 300)
    with publisher(capacity=20 << 20) as producer:
        producer.save("a", tensor(16_384))  # 16 MiB
        crc = _crc(producer, "a")
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        dealer.connect(f"tcp://{producer.server.address}")
        for chunk in range(16):
            dealer.send(protocol.encode(protocol.Fetch(chunk, MODEL, crc, chunk << 20, 1 << 20, "a")))
        wait_for(lambda: producer.server._responder.counts["chunk"] == 16)

        def room() -> bool:
            producer.save("large", tensor(16_384, seed=1))
            return producer.cache.touch("large")

        wait_for(room)


def test_an_error_that_stays_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is followed by a wait that is longer each time; when it has gone, all is served."""
    waits: list[float] = []
    broken = True

    class Waits(Backoff):
        def next(self) -> float:
            waits.append(super().next())
            return 0.001

    turn = server.Server._turn

    def failing(self: server.Server, poller: Any) -> None:
        if broken:
            raise OSError(24, "Too many open files")
        turn(self, poller)

    monkeypatch.setattr(server, "Backoff", Waits)
    monkeypatch.setattr(server.Server, "_turn", failing)
    with publisher() as producer:
        wait_for(lambda: len(waits) >= 10)
        broken = False
        wait_for(lambda: producer.server.counts["error"] <= len(waits))
        assert max(waits[:10]) > 2.0
        producer.save("a", tensor(4))
        with rig(producer.server.address) as consumer:
            consumer.wait(request("r", feature("a", 4)))
            assert consumer.consumer.has("a")


def test_a_message_without_an_answer_delays_no_other(dealer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, without a wait."""

    class Never(Backoff):
        def next(self) -> float:
            raise AssertionError

    monkeypatch.setattr(server, "Backoff", Never)
    with publisher() as producer:
        answer = producer.server._responder.answer

        def failing(frame: bytes) -> Any:
            if b"bad" in frame:
                raise MemoryError
            return answer(frame)

        producer.server._responder.answer = failing  # type: ignore[method-assign]
        dealer.connect(f"tcp://{producer.server.address}")
        dealer.send(protocol.encode(protocol.Probe(1, MODEL, "bad")))
        dealer.send(protocol.encode(protocol.Probe(2, MODEL, "good")))
        assert protocol.decode_answer(dealer.recv()) == protocol.Miss(2)
        assert producer.server.counts["error"] == 1
