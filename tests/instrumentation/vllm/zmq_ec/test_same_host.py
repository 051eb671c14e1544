"""Items of a producer on the same host: copied out of its memory, and by message where that cannot be."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import zmq
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW, Drill
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory import item_area
from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import this_place
from penstock.instrumentation.vllm.zmq_ec.producer.responder import Responder
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

from tests.support.ec.rig import (
    MODEL,
    Notes,
    Rig,
    attach,
    feature,
    publisher,
    request,
    rig,
    tensor,
    wait_for,
)
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import FoundItem
    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker

ROWS = 3000  # several pieces


def counts(producer: ProducerWorker) -> Any:
    """Return what the producer has answered."""
    return producer.server._responder.counts


def fingerprinted(producer: ProducerWorker, item: str) -> bool:
    """Whether all of an item has fingerprints."""
    assert producer.cache.area is not None
    reader = AreaReader(producer.cache.area)
    found = reader.find(item)
    done = found is not None and reader.checked(found) == found.size
    reader.close()
    return done


def watched(consumer: Rig) -> Notes:
    """Keep what the consumer reports; the test drains the failures."""
    notes = Notes()
    consumer.consumer.observe(notes)
    return notes


def test_an_item_is_copied_without_a_message(producer: ProducerWorker, near: Rig) -> None:
    """Both sides report it as they do a transfer by message."""
    notes, sent = watched(near), Notes()
    producer.server.observer = sent
    before = counts(producer).copy()
    producer.save("a", tensor(ROWS))
    near.wait(request("r", feature("a", ROWS)))
    assert torch.equal(near.load("a")[0], tensor(ROWS))
    assert counts(producer)["chunk"] == before["chunk"]
    assert [(each.item, each.bytes, each.ok) for each in notes.transfers] == [("a", ROWS * 1024, True)]
    assert notes.probes == [("a", producer.server.address, c.PROBE_RESULT_HIT)]
    hand_out = wait_for(lambda: next((each for each in sent.hand_outs if each.item == "a"), None))
    assert (hand_out.bytes, hand_out.ok) == (ROWS * 1024, True)
    assert 0 < hand_out.start_ns <= hand_out.end_ns
    assert near.consumer.items.checksum("a") == fingerprints.of_item(tensor(ROWS).numpy().tobytes())


def test_many_items_at_once(producer: ProducerWorker, near: Rig) -> None:
    """All of them arrive."""
    for index in range(32):
        producer.save(f"i{index}", tensor(30, seed=index))
    near.wait(request("r", *(feature(f"i{index}", 30) for index in range(32))))
    loaded = near.load(*(f"i{index}" for index in range(32)))
    assert all(torch.equal(each, tensor(30, seed=index)) for index, each in enumerate(loaded))


def test_without_the_setting_everything_comes_by_message(producer: ProducerWorker, consumer: Rig) -> None:
    """The producer is not asked for its memory."""
    attach(consumer, producer)
    assert counts(producer)["area"] == 0
    assert counts(producer)["chunk"] == 1


def test_a_producer_of_an_earlier_version(producer: ProducerWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses the question, and its items come by message."""
    answer = Responder.answer

    def earlier(self: Responder, frame: bytes) -> Any:
        try:
            asked = protocol.decode_request(frame)
        except protocol.WireError:
            return answer(self, frame)
        if isinstance(asked, protocol.Attach | protocol.Taken) or getattr(asked, "fingerprint", False):
            return self._refuse(asked.tag, protocol.Reason.MALFORMED, "that is no request")
        return answer(self, frame)

    monkeypatch.setattr(Responder, "answer", earlier)
    with rig(producer.server.address, same_host=True) as consumer:
        attach(consumer, producer)
        producer.save("a", tensor(ROWS))
        consumer.wait(request("r", feature("a", ROWS)))
        assert torch.equal(consumer.load("a")[0], tensor(ROWS))
    assert counts(producer)["chunk"] == 4
    assert counts(producer)["malformed"] == 1


def test_without_the_library_of_the_fingerprints(
    producer: ProducerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items come by message, with a CRC-32."""
    monkeypatch.setattr(fingerprints, "_cipher", lambda: None)
    with rig(producer.server.address, same_host=True) as consumer:
        attach(consumer, producer)
        producer.save("a", tensor(ROWS))
        consumer.wait(request("r", feature("a", ROWS)))
        assert torch.equal(consumer.load("a")[0], tensor(ROWS))
        assert consumer.consumer.items.checksum("a") == zlib.crc32(tensor(ROWS).numpy())
    assert counts(producer)["area"] == 0
    assert counts(producer)["chunk"] == 4


@pytest.mark.parametrize(
    ("model", "place", "expected"),
    [
        (MODEL, this_place(), protocol.Area),
        (MODEL, bytes(16), protocol.Miss),
        (bytes(16), this_place(), protocol.Refused),
    ],
)
def test_who_learns_where_the_memory_is(
    producer: ProducerWorker, model: bytes, place: bytes, expected: type
) -> None:
    """Who says the same place, and runs the same model."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 60_000)
        socket.connect(f"tcp://{producer.server.address}")
        socket.send(protocol.encode(protocol.Attach(5, model, place)))
        answer = protocol.decode_answer(socket.recv())
    assert isinstance(answer, expected)
    assert answer.tag == 5


@pytest.mark.parametrize("asked", [None, bytes(16), this_place()])
@pytest.mark.parametrize("item", ["a", "unknown"])
def test_a_copy_that_a_consumer_invents(producer: ProducerWorker, item: str, asked: bytes | None) -> None:
    """It has the item's real size and a bounded time in the reports, or is in none; as where the memory was never named."""
    notes = Notes()
    producer.server.observer = notes
    producer.save("a", tensor(4))
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 60_000)
        socket.connect(f"tcp://{producer.server.address}")
        if asked is not None:
            socket.send(protocol.encode(protocol.Attach(4, MODEL, asked)))
            assert protocol.decode_answer(socket.recv()).tag == 4
        socket.send(protocol.encode(protocol.Taken(5, MODEL, 2**64 - 1, item)))
        socket.send(protocol.encode(protocol.Probe(6, MODEL, "b")))
        assert protocol.decode_answer(socket.recv()) == protocol.Miss(6)
    knows = asked == this_place()
    assert (counts(producer)["taken"], producer.server.counts["unasked"]) == (knows, not knows)
    expected = [("a", 4096)] if knows and item == "a" else []
    assert [(each.item, each.bytes) for each in notes.hand_outs] == expected
    assert all(0 < each.start_ns < each.end_ns for each in notes.hand_outs)


def test_damaged_bytes_cost_a_retry_by_message(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of that producer is not used any more on that connection."""
    copy = AreaReader.copy

    def damaged(self: AreaReader, found: FoundItem, offset: int, target: Any) -> bool:
        done = copy(self, found, offset, target)
        target[len(target) // 2] ^= 1
        return done

    monkeypatch.setattr(AreaReader, "copy", damaged)
    notes = watched(near)
    producer.save("a", tensor(ROWS))
    producer.save("b", tensor(4))
    near.wait(request("r", feature("a", ROWS)))
    assert torch.equal(near.load("a")[0], tensor(ROWS))
    assert [each.ok for each in notes.transfers] == [False, True]
    (failure,) = notes.failures
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT)
    assert near.consumer.drain_failures() == []
    before = counts(producer)["chunk"]
    near.wait(request("s", feature("b", 4)))
    assert torch.equal(near.load("b")[0], tensor(4))
    assert counts(producer)["chunk"] == before + 1


def test_an_item_that_is_evicted_while_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a failed load, as by message; the next item is copied again."""
    copy = AreaReader.copy
    with publisher(capacity=6 << 20) as producer, rig(producer.server.address, same_host=True) as near:
        attach(near, producer)
        notes = watched(near)

        def late(self: AreaReader, found: FoundItem, offset: int, target: Any) -> bool:
            if offset:
                producer.save("large", tensor(5900))
            return copy(self, found, offset, target)

        producer.save("a", tensor(ROWS))
        wait_for(lambda: fingerprinted(producer, "a"))
        monkeypatch.setattr(AreaReader, "copy", late)
        asked = request("r", feature("a", ROWS))
        near.settle(asked)
        monkeypatch.undo()
        (failure,) = near.consumer.drain_failures()
        assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED)
        assert [each.ok for each in notes.transfers] == [False]
        before = counts(producer)["chunk"]
        producer.save("b", tensor(4))
        near.wait(request("s", feature("b", 4)))
        assert torch.equal(near.load("b")[0], tensor(4))
        assert counts(producer)["chunk"] == before


def test_an_item_of_another_shape_is_judged_by_message(producer: ProducerWorker, near: Rig) -> None:
    """The failed probe is reported as it is without shared memory."""
    notes = watched(near)
    producer.save("a", tensor(8))
    near.wait(request("r", feature("a", 4)))
    assert not near.consumer.has("a")
    assert notes.probes == [("a", producer.server.address, c.PROBE_RESULT_ERROR)]
    assert notes.failures[0].error_type == c.ERROR_TYPE_INCOMPATIBLE


@pytest.mark.parametrize("mode", [c.FAILURE_MODE_PROBE, c.FAILURE_MODE_TRANSFER, SLOW])
def test_drills_hit_copies_too(producer: ProducerWorker, near: Rig, mode: int) -> None:
    """A probe or a transfer fails, or the transfer is late."""
    notes = watched(near)
    drill = Drill("d", c.CHANNEL_EC, mode, 1.0, 10**12, delay_ns=50_000_000 if mode == SLOW else 0)
    near.consumer.rehearse(lambda asked, _: drill if asked == mode else None)
    producer.save("a", tensor(4))
    asked = request("r", feature("a", 4))
    near.settle(asked)
    assert near.consumer.has("a") is (mode == SLOW)
    assert {each.rehearsal for each in notes.failures} == (set() if mode == SLOW else {True})


def test_giving_up_while_it_is_copied(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is free again."""
    copy = AreaReader.copy

    def given_up(self: AreaReader, found: FoundItem, offset: int, target: Any) -> bool:
        near.consumer.give_up("a")
        return copy(self, found, offset, target)

    monkeypatch.setattr(AreaReader, "copy", given_up)
    slots = len(near.consumer._slots)
    producer.save("a", tensor(ROWS))
    asked = request("r", feature("a", ROWS))
    assert not near.consumer.ensure(asked, 0)
    wait_for(lambda: near.consumer.ensure(asked, 0))
    wait_for(lambda: len(near.consumer._slots) == slots)
    assert not near.consumer.has("a")


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[str]]:
    """Run a producer in a process of its own, which has one item."""
    command = [sys.executable, "-m", "tests.support.ec.producer_process", "0", str(ROWS), "1000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def test_a_producer_in_another_process(other_process: subprocess.Popen[str]) -> None:
    """A stopped one still gives what it has; a killed one is gone, and nothing of it stays open."""
    before = areas_open()
    assert other_process.stdout is not None
    address = other_process.stdout.readline().strip()
    with rig(address, same_host=True, missing_for=0.05) as near:
        near.wait(request("unknown", feature("b", 4)))
        notes = watched(near)
        fetcher: Any = near.consumer._fetcher
        (known,) = fetcher._producers
        wait_for(lambda: known.connection.area)
        stop(other_process.pid)
        near.wait(request("r", feature("a", ROWS)))
        assert torch.equal(near.load("a")[0], tensor(ROWS))
        assert [each.ok for each in notes.transfers] == [True]
        other_process.kill()
        other_process.wait()
        wait_for(lambda: known.connection is None)
        wait_for(lambda: areas_open() <= before)


def areas_open() -> int:
    """Return how many producers' memories this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(each.readlink()))
        except FileNotFoundError:
            continue
    return sum(item_area.FILE in each for each in found)


def test_an_entry_whose_slot_is_damaged(producer: ProducerWorker, near: Rig) -> None:
    """The item comes by message, after one probe."""
    notes = watched(near)
    producer.save("a", tensor(ROWS))
    wait_for(lambda: fingerprinted(producer, "a"))
    producer.cache._area._map[producer.cache._items["a"].slot.start] ^= 1
    before = counts(producer)["chunk"]
    near.wait(request("r", feature("a", ROWS)))
    assert torch.equal(near.load("a")[0], tensor(ROWS))
    assert counts(producer)["chunk"] > before
    assert notes.probes == [("a", producer.server.address, c.PROBE_RESULT_HIT)]
    assert notes.failures == []


def test_an_item_that_is_evicted_and_comes_again_while_it_waits_for_room(producer: ProducerWorker) -> None:
    """It keeps its place: nobody is asked again."""
    with rig(producer.server.address, same_host=True, region_bytes=ROWS * 1024 + (64 << 10)) as consumer:
        attach(consumer, producer)
        for item in "ab":
            producer.save(item, tensor(ROWS, seed=ord(item)))
        notes = watched(consumer)
        consumer.wait(request("r", feature("a", ROWS)))
        loading = consumer.orders("a")
        waits = request("s", feature("b", ROWS))
        assert not consumer.consumer.ensure(waits, 0)
        wait_for(lambda: ("b", producer.server.address, c.PROBE_RESULT_HIT) in notes.probes)
        cache = producer.cache
        kept = cache._items.pop("b")
        producer.save("b", tensor(ROWS, seed=ord("b")))
        cache._area.withdraw(kept.slot)
        consumer.run(loading)
        consumer.consumer.end_step([])
        consumer.wait(waits)
        assert torch.equal(consumer.load("b")[0], tensor(ROWS, seed=ord("b")))
        assert [item for item, _, _ in notes.probes] == ["a", "b"]
