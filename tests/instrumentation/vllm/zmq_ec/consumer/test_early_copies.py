"""Small items of a producer on the same host: copied in the call that asks for them, or by the fetcher."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.consumer.early_copies import LOOKS, SMALL
from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader

from tests.support.ec.rig import (
    HIDDEN,
    Notes,
    Rig,
    attach,
    feature,
    leave_unsealed,
    publisher,
    request,
    rig,
    tensor,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.zmq_ec.producer.worker import ProducerWorker

SMALL_ROWS = SMALL // HIDDEN // 4


def calls(monkeypatch: pytest.MonkeyPatch, method: str) -> Iterator[int]:
    """Return an iterator whose next value is how often *method* of a reader has been called. It keeps no argument: they are memory."""
    called, original = count(), getattr(AreaReader, method)

    def counted(*args: object) -> object:
        next(called)
        return original(*args)

    monkeypatch.setattr(AreaReader, method, counted)
    return called


def at_once(consumer: Rig, *features: object) -> bool:
    """Ask once, as the scheduler does in one step; return whether the request need not wait."""
    return consumer.consumer.ensure(request("r", *features), 0)


@pytest.mark.parametrize("rows", [1, SMALL_ROWS])
def test_a_small_item_is_there_in_the_same_call(producer: ProducerWorker, near: Rig, rows: int) -> None:
    """Both sides report it as they do one of the fetcher's."""
    notes, sent = Notes(), Notes()
    near.consumer.observe(notes)
    producer.server.observer = sent
    producer.save("a", tensor(rows))
    assert at_once(near, feature("a", rows))
    assert near.consumer.items.checksum("a") == fingerprints.of_item(tensor(rows).numpy().tobytes())
    assert near.consumer.items.transfer_start("a")
    assert torch.equal(near.load("a")[0], tensor(rows))
    assert notes.probes == [("a", producer.server.address, c.PROBE_RESULT_HIT)]
    (moved,) = notes.transfers
    assert (moved.item, moved.bytes, moved.ok, moved.request_id) == ("a", rows * HIDDEN * 4, True, "r")
    assert moved.start_ns <= moved.end_ns
    hand_out = wait_for(lambda: next((each for each in sent.hand_outs if each.item == "a"), None))
    assert (hand_out.bytes, hand_out.ok) == (rows * HIDDEN * 4, True)
    assert hand_out.end_ns - hand_out.start_ns >= moved.end_ns - moved.start_ns


def test_the_producer_learns_of_one_that_no_step_loads(producer: ProducerWorker, near: Rig) -> None:
    """Its request was aborted."""
    sent = Notes()
    producer.server.observer = sent
    producer.save("a", tensor(1))
    assert at_once(near, feature("a", 1))
    near.run(near.consumer.end_step([]))
    wait_for(lambda: [each.item for each in sent.hand_outs if each.item == "a"])


def test_what_is_not_small_is_the_fetchers(producer: ProducerWorker, near: Rig) -> None:
    """And is there soon after."""
    rows = SMALL_ROWS + 1
    producer.save("a", tensor(rows))
    assert not at_once(near, feature("a", rows))
    near.wait(request("r", feature("a", rows)))
    assert torch.equal(near.load("a")[0], tensor(rows))


def test_a_step_copies_so_much_and_no_more(producer: ProducerWorker, near: Rig) -> None:
    """What is beyond it is the fetcher's; the next step copies again."""
    features = []
    for item in "abcd":
        producer.save(item, tensor(SMALL_ROWS, seed=ord(item)))
        features.append(feature(item, SMALL_ROWS))
    assert at_once(near, features[0])
    assert at_once(near, features[1])
    assert not at_once(near, features[2])
    near.wait(request("r", *features[:3]))
    loaded = near.load("a", "b", "c")
    assert all(
        torch.equal(each, tensor(SMALL_ROWS, seed=ord(item)))
        for item, each in zip("abc", loaded, strict=True)
    )
    assert at_once(near, features[3])


def test_a_copy_in_vain_counts(producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged items do not cost the scheduler more than others."""
    monkeypatch.setattr(near.consumer.items.orders, "drain", list)  # the fetcher gets none
    leave_unsealed(producer, monkeypatch)
    copies = calls(monkeypatch, "copy")
    features = []
    for item in "abc":
        producer.save(item, tensor(SMALL_ROWS))
        producer.cache._area.set_checked(producer.cache._items[item].slot, 0, bytes(fingerprints.SIZE))
        features.append(feature(item, SMALL_ROWS))
    assert not at_once(near, *features)
    assert next(copies) == 2


def test_a_step_looks_so_often_and_no_more(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not in the producer's memory costs a look, too."""
    monkeypatch.setattr(near.consumer.items.orders, "drain", list)  # the fetcher gets none
    looks = calls(monkeypatch, "find")
    assert not at_once(near, *(feature(f"missing-{number}", 1) for number in range(LOOKS + 1)))
    assert next(looks) == LOOKS
    producer.save("a", tensor(1))
    assert not at_once(near, feature("a", 1))
    near.run(near.consumer.end_step([]))
    producer.save("b", tensor(1))
    assert at_once(near, feature("b", 1))


def test_the_fetcher_judges_what_is_damaged(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed copy is reported by it, and the item comes by message."""
    notes = Notes()
    near.consumer.observe(notes)
    leave_unsealed(producer, monkeypatch)
    producer.save("a", tensor(2))
    producer.cache._area.set_checked(producer.cache._items["a"].slot, 0, bytes(fingerprints.SIZE))
    assert not at_once(near, feature("a", 2))
    near.wait(request("r", feature("a", 2)))
    assert torch.equal(near.load("a")[0], tensor(2))
    assert [each.error_type for each in notes.failures] == [c.ERROR_TYPE_CORRUPT]
    assert [each.ok for each in notes.transfers] == [False, True]


@pytest.mark.parametrize("missing", ["item", "fingerprint", "shape"])
def test_what_is_not_whole_or_not_fit_is_left_to_the_fetcher(
    producer: ProducerWorker, near: Rig, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is reported of the attempt."""
    notes = Notes()
    near.consumer.observe(notes)
    if missing == "fingerprint":
        leave_unsealed(producer, monkeypatch)
    if missing != "item":
        producer.save("a", tensor(2))
    orders = near.consumer.items.orders
    monkeypatch.setattr(orders, "drain", list)  # the fetcher gets none
    assert not at_once(near, feature("a", 3 if missing == "shape" else 2))
    assert near.consumer.items.is_pending("a")
    assert len(orders._orders) == 1
    assert len(near.consumer._slots) == 1  # the first one's
    assert (notes.probes, notes.transfers, notes.failures) == ([], [], [])


def test_with_drills_every_item_is_the_fetchers(producer: ProducerWorker, near: Rig) -> None:
    """They hit its probes and transfers."""
    hits = []

    def hit(mode: int, address: str) -> None:
        hits.append((mode, address))

    near.consumer.rehearse(hit)
    producer.save("a", tensor(1))
    assert not at_once(near, feature("a", 1))
    near.wait(request("r", feature("a", 1)))
    assert hits


def test_an_item_for_which_there_is_no_room_yet_is_not_overtaken(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher gives room in the order of its hits."""
    monkeypatch.setattr(near.consumer.items.orders, "room_wanted", True)
    producer.save("a", tensor(1))
    assert not at_once(near, feature("a", 1))
    near.wait(request("r", feature("a", 1)))


def test_without_any_room_it_waits(producer: ProducerWorker) -> None:
    """Of two items that the request needs, and that do not fit beside each other, neither is dropped half-way."""
    with rig(producer.server.address, same_host=True, region_bytes=4096 * 4) as consumer:
        attach(consumer, producer)
        rows = 4096 // (HIDDEN * 4) + 1
        for item in "ab":
            producer.save(item, tensor(rows, seed=ord(item)))
        assert at_once(consumer, feature("a", rows))
        assert not at_once(consumer, feature("b", rows))
        assert torch.equal(consumer.load("a")[0], tensor(rows, seed=ord("a")))
        consumer.wait(request("r", feature("b", rows)))
        assert torch.equal(consumer.load("b")[0], tensor(rows, seed=ord("b")))


def test_an_error_leaves_the_item_to_the_fetcher(
    producer: ProducerWorker, near: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler goes on, and the slot is free again."""
    copy = AreaReader.copy

    def broken(self: AreaReader, *args: object) -> bool:
        monkeypatch.setattr(AreaReader, "copy", copy)
        raise MemoryError

    monkeypatch.setattr(AreaReader, "copy", broken)
    producer.save("a", tensor(1))
    assert not at_once(near, feature("a", 1))
    assert "could not be copied at once" in caplog.text
    caplog.clear()  # its traceback has the memory
    near.wait(request("r", feature("a", 1)))
    assert torch.equal(near.load("a")[0], tensor(1))
    assert len(near.consumer._slots) == 2


def test_a_producer_that_fails_is_the_fetchers(producer: ProducerWorker, near: Rig) -> None:
    """Until it has answered again."""
    fetcher = near.consumer._fetcher
    assert fetcher is not None
    (source,) = fetcher._producers
    source._failing = True
    producer.save("a", tensor(1))
    assert not at_once(near, feature("a", 1))


def test_the_second_producer_has_it(producer: ProducerWorker) -> None:
    """The first one's memory has no such item."""
    with (
        publisher() as other,
        rig(other.server.address, producer.server.address, same_host=True) as consumer,
    ):
        attach(consumer, producer)
        fetcher = consumer.consumer._fetcher
        assert fetcher is not None
        wait_for(lambda: all(each.area for each in fetcher._producers))
        producer.save("a", tensor(1))
        assert at_once(consumer, feature("a", 1))
        peer = consumer.consumer.items.peer_of("a")
        assert peer is not None
        assert peer.address == producer.server.address


def test_only_admitted_producers_are_looked_at(producer: ProducerWorker, near: Rig) -> None:
    """A policy may keep an item to others."""
    producer.save("a", tensor(1))
    near.consumer.keep_to("r", "a", ("192.0.2.1:1",))
    assert not at_once(near, feature("a", 1))
