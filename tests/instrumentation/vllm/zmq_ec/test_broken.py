"""Transfers that fail: retries, events, and outcomes of the requests."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.consumer import items
from penstock.instrumentation.vllm.zmq_ec.consumer.connection import ProducerConnection
from penstock.instrumentation.vllm.zmq_ec.producer.host_cache import HostCache
from penstock.instrumentation.vllm.zmq_ec.producer.responder import Reply, Responder
from penstock.instrumentation.vllm.zmq_ec.producer.server import Server
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

from tests.support.ec.rig import MODEL, Notes, Rig, feature, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 3000  # three chunks
ITEM = tensor(ROWS)


class Scripted(Responder):
    """Answers a probe as it should, and the n-th fetch by *script*, which gets (n, request, the right reply)."""

    def __init__(self, script: Callable[[int, protocol.Fetch, Reply], Reply]) -> None:
        cache = HostCache(64 << 20)
        payload = ITEM.view(torch.uint8).numpy().reshape(-1)
        cache.put("a", ITEM.nbytes, lambda memory: np.copyto(memory, payload), ROWS, ITEM.shape[1], "float32")
        super().__init__(cache, MODEL)
        self.cache = cache
        self.asked = 0
        self._script = script

    def answer(self, frame: bytes) -> Reply:
        """Answer by the script."""
        asked = protocol.decode_request(frame)
        right = super().answer(frame)
        if not isinstance(asked, protocol.Fetch):
            return right
        self.asked += 1
        return self._script(self.asked, asked, right)


@contextlib.contextmanager
def scripted(script: Callable[[int, protocol.Fetch, Reply], Reply]) -> Iterator[tuple[Server, Scripted]]:
    """Serve by a script."""
    responder = Scripted(script)
    server = Server(responder, "127.0.0.1", 0)
    server.start()
    try:
        yield server, responder
    finally:
        server.stop()


def observed(consumer: Rig) -> Notes:
    """Keep what it tells, and take over the failures."""
    notes = Notes()
    consumer.consumer.observe(notes)
    return notes


def tampered(reply: Reply) -> Reply:
    """Return the reply with one bit of the content flipped."""
    payload = bytearray(reply.frames[1])
    payload[len(payload) // 2] ^= 1
    return reply._replace(frames=[reply.frames[0], bytes(payload)])


def refusal(asked: protocol.Fetch, reason: protocol.Reason) -> Reply:
    """Refuse it."""
    return Reply([protocol.encode(protocol.Refused(asked.tag, reason, "no"))])


def shifted(asked: protocol.Fetch, right: Reply) -> Reply:
    """Send the right bytes for another place."""
    header = protocol.Chunk(asked.tag, asked.crc, asked.offset + 4, asked.length)
    return right._replace(frames=[protocol.encode(header), right.frames[1]])


BREAKS: dict[str, tuple[Callable[[int, protocol.Fetch, Reply], Reply], int, int]] = {
    "corrupt": (lambda n, asked, right: tampered(right), c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT),
    "shifted": (lambda n, asked, right: shifted(asked, right), c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT),
    "short": (
        lambda n, asked, right: right._replace(frames=[right.frames[0], bytes(right.frames[1])[:-1]]),
        c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT,
    ),
    "evicted": (
        lambda n, asked, right: Reply([protocol.encode(protocol.Miss(asked.tag))]) if n > 1 else right,
        c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED,
    ),
    "changed": (
        lambda n, asked, right: refusal(asked, protocol.Reason.CHANGED), c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED,
    ),
    "refused": (
        lambda n, asked, right: refusal(asked, protocol.Reason.BUSY), c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER,
    ),
    "oversize": (
        lambda n, asked, right: right._replace(frames=[right.frames[0], bytes(protocol.CHUNK_MAX + 1)]),
        c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET,
    ),
    "stalled": (
        lambda n, asked, right: right if n == 1 else Reply([protocol.encode(protocol.Miss(0))]),
        c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT,
    ),
}  # fmt: skip


def test_a_connection_that_ends_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is that of the connection, also where a request cannot be sent before its end has been read."""
    send, asked = ProducerConnection.send, set()

    def late(self: ProducerConnection, message: protocol.Request) -> bool:
        if isinstance(message, protocol.Fetch):
            if self in asked:
                self.monitor.poll(60_000)
            asked.add(self)
        return send(self, message)

    monkeypatch.setattr(ProducerConnection, "send", late)
    script, mode, error_type = BREAKS["oversize"]
    with scripted(script) as (server, _), rig(server.address) as consumer:
        observed(consumer)
        asked_for = request("r", feature("a", ROWS))
        consumer.settle(asked_for)
        assert not consumer.consumer.ensure(asked_for, 0)
        failures = consumer.consumer.drain_failures()
    assert [(each.item, each.mode, each.error_type) for each in failures] == [("a", mode, error_type)]


@pytest.mark.parametrize("kind", BREAKS)
def test_a_load_that_always_fails_is_reported_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load is given up after its retries; each attempt is reported; the item is not loaded again."""
    monkeypatch.setattr(items, "_UNDECIDED_MAX", 60.0)
    script, mode, error_type = BREAKS[kind]
    patience = {"idle_timeout": 1.0} if kind == "stalled" else {}
    with scripted(script) as (server, _), rig(server.address, **patience) as consumer:
        notes = observed(consumer)
        asked = request("r", feature("a", ROWS))
        consumer.settle(asked)
        assert not consumer.consumer.ensure(asked, 0)  # it is not decided yet
        assert not consumer.consumer.has("a")
        (failure,) = consumer.consumer.drain_failures()
        assert (failure.item, failure.request_id, failure.mode, failure.error_type) == (
            "a",
            "r",
            mode,
            error_type,
        )
        assert failure.peer is not None
        assert failure.peer.address == server.address
        assert failure.start_ns > 0
        assert notes.failures[-1] == failure
        assert {each.ok for each in notes.transfers} == {False}
        assert len(notes.transfers) in (1, 2)  # the second attempt may find the producer in its back-off
        assert consumer.consumer.drain_failures() == []
        assert consumer.consumer.ensure(asked, 0)
        assert not consumer.consumer.has("a")
        assert len(consumer.consumer._slots) == 0
        assert consumer.consumer.items.in_flight() == []


@pytest.mark.parametrize("kind", ["corrupt", "short", "refused", "changed"])
def test_the_second_attempt_can_succeed(kind: str) -> None:
    """One broken chunk costs one retry and no failure."""
    script = BREAKS[kind][0]

    def once(n: int, asked: protocol.Fetch, right: Reply) -> Reply:
        return script(n, asked, right) if n == 1 else right

    with scripted(once) as (server, _), rig(server.address) as consumer:
        notes = observed(consumer)
        consumer.wait(request("r", feature("a", ROWS)))
        assert torch.equal(consumer.load("a")[0], ITEM)
        assert [each.ok for each in notes.transfers] == [False, True]
        assert consumer.consumer.drain_failures() == []


def test_another_producer_takes_over() -> None:
    """The one that broke off is left alone for a while."""

    def hang(n: int, asked: protocol.Fetch, right: Reply) -> Reply:
        return right if n == 1 else Reply([protocol.encode(protocol.Miss(0))])

    with scripted(hang) as (bad, _), scripted(lambda n, asked, right: right) as (good, other):
        # The good one has the item only once the bad one has begun to send it.
        kept = other.cache._items.pop("a")
        with rig(bad.address, good.address, idle_timeout=2.0) as consumer:
            notes = observed(consumer)
            asked = request("r", feature("a", ROWS))
            wait_for(
                lambda: not consumer.consumer.ensure(asked, 0) and consumer.consumer.items.transfer_start("a")
            )
            (flying,) = consumer.consumer.items.in_flight()
            assert flying[:2] == (consumer.consumer.items.peer_of("a"), 1)
            other.cache._items["a"] = kept
            consumer.wait(asked)
            assert torch.equal(consumer.load("a")[0], ITEM)
            assert [(each.peer.address, each.ok) for each in notes.transfers] == [
                (bad.address, False),
                (good.address, True),
            ]


def test_a_transfer_that_only_drips_is_ended() -> None:
    """There is always progress, and never an end."""
    ended = threading.Event()

    def drip(n: int, asked: protocol.Fetch, right: Reply) -> Reply:
        # The last of three comes too late, however late the consumer looks.
        ended.wait(60 if n == 3 else 0.05)
        return right

    with scripted(drip) as (server, _), rig(server.address, transfer_timeout=0.1, retries=0) as consumer:
        observed(consumer)
        try:
            consumer.settle(request("r", feature("a", ROWS)))
            (failure,) = consumer.consumer.drain_failures()
        finally:
            ended.set()
        assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
        assert "not whole" in failure.text


@pytest.mark.parametrize("load_failure", ["recompute", "fail"])
def test_alone_the_connector_decides_itself(load_failure: str) -> None:
    """For who waited by its own setting; who comes later encodes here; who has no media can only fail."""
    both_wait = threading.Event()

    def refused(n: int, asked: protocol.Fetch, right: Reply) -> Reply:
        both_wait.wait(60)
        return BREAKS["refused"][0](n, asked, right)

    with (
        scripted(refused) as (server, _),
        rig(server.address, load_failure=load_failure) as consumer,
    ):
        waited, late = request("waited", feature("a", ROWS)), request("late", feature("a", ROWS))
        blind = request("blind", feature("a", ROWS, media=False))
        assert not consumer.consumer.ensure(blind, 0)
        assert not consumer.consumer.ensure(waited, 0)
        both_wait.set()
        consumer.settle(waited)
        assert consumer.consumer.ensure(waited, 0) is (load_failure == "recompute")
        assert consumer.consumer.ensure(late, 0)
        assert not consumer.consumer.ensure(blind, 0)
        assert not consumer.consumer.has("a")
        expected = {"blind", "waited"} if load_failure == "fail" else {"blind"}
        assert consumer.consumer.drain_unavailable() == expected
        assert consumer.consumer.drain_failures() == []


def test_a_failure_without_a_reader_delays_others_briefly() -> None:
    """A failed load is handled when the hook was removed meanwhile."""
    with scripted(BREAKS["refused"][0]) as (server, _), rig(server.address) as consumer:
        observed(consumer)
        consumer.wait(request("r", feature("a", ROWS)))
        assert not consumer.consumer.has("a")


def test_giving_up_while_it_moves() -> None:
    """Its memory is free again, and what still comes is dropped."""
    begun, go = threading.Event(), threading.Event()

    def wait(n: int, asked: protocol.Fetch, right: Reply) -> Reply:
        if n == 2:
            begun.set()
            go.wait(60)
        return right

    with scripted(wait) as (server, _), rig(server.address) as consumer:
        notes = observed(consumer)
        asked = request("r", feature("a", ROWS))
        assert not consumer.consumer.ensure(asked, 0)
        assert begun.wait(60)
        assert consumer.consumer.items.is_pending("a")
        consumer.consumer.give_up("a")
        assert consumer.consumer.ensure(asked, 0)
        assert not consumer.consumer.has("a")
        go.set()
        wait_for(lambda: len(consumer.consumer._slots) == 0)
        assert consumer.consumer.drain_failures() == []
        assert not any(each.ok for each in notes.transfers)


class Fuzzing:
    """Answers everything with given frames."""

    def __init__(self, frames: list[bytes]) -> None:
        self.counts: Counter[str] = Counter()
        self._frames = frames

    def answer(self, frame: bytes) -> Reply:
        """Answer, with the right tag where a frame says so."""
        tag = protocol.decode_request(frame).tag.to_bytes(8, "big")
        return Reply([each.replace(b"TAGTAGTA", tag) for each in self._frames])

    def seal(self, item: str) -> None:
        """Nothing."""


PREFIX = b"PE\1"
NEARLY = st.builds(
    lambda kind, rest: PREFIX + bytes([kind]) + b"TAGTAGTA" + rest,
    st.integers(0, 255),
    st.binary(max_size=60),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(NEARLY, st.binary(max_size=100)), min_size=1, max_size=4))
def test_a_producer_that_answers_anything(frames: list[bytes]) -> None:
    """Costs the probe's time at most; the request goes on."""
    server: Any = Server(Fuzzing(frames), "127.0.0.1", 0)  # type: ignore[arg-type]
    server.start()
    try:
        with rig(server.address, probe_timeout=0.05, idle_timeout=0.1, retries=0) as consumer:
            consumer.wait(request("r", feature("a", 4)))
            assert not consumer.consumer.has("a")
    finally:
        server.stop()


def test_a_content_that_is_announced_and_never_ends() -> None:
    """Its size is checked against its shape and the shared memory before anything is asked for."""
    header = PREFIX + b"\3TAGTAGTA"
    huge = header + MODEL + np.array([0], ">u4").tobytes() + np.array([4 * (1 << 24) * 256], ">u8").tobytes()
    huge += np.array([1 << 24, 256], ">u4").tobytes() + b"float32"
    server: Any = Server(Fuzzing([huge]), "127.0.0.1", 0)  # type: ignore[arg-type]
    server.start()
    try:
        with rig(server.address) as consumer:
            notes = observed(consumer)
            consumer.wait(request("r", feature("a", 1 << 24)))
            assert not consumer.consumer.has("a")
            assert "more than the shared memory takes" in notes.failures[0].text
    finally:
        server.stop()
