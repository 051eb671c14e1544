"""The memory of a producer that consumers on the same host read: what they find, and what they do not take."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.consumer.area_copy import AreaCopy, ItemGoneError, begin_copy
from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import TransferError
from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots, item_area
from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaError, AreaReader, FoundItem
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import AreaName, ItemArea

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CAPACITY = 8 << 20
PIECE = fingerprints.PIECE
PIECES = 4
CONTENT = np.random.default_rng(1).integers(0, 256, 3 * PIECE + 40, dtype=np.uint8)


class Published:
    """An area with items, and a reader of it."""

    def __init__(self, area: ItemArea) -> None:
        assert area.name is not None
        self.area = area
        self.name = area.name
        self.slots = Slots(0, CAPACITY)
        self.reader = AreaReader(area.name)

    def put(self, item: str, content: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Slot:
        """Write an item and publish it, without fingerprints."""
        slot, _ = self.slots.allocate(item, content.nbytes, 0.0)
        assert slot is not None
        self.area.slots[slot.content : slot.content + slot.nbytes] = content
        self.area.publish(slot, content.nbytes // 4, 1, "float32")
        return slot

    def check(self, slot: Slot, pieces: int) -> None:
        """Compute the fingerprints of the first *pieces*."""
        content = self.area.slots[slot.content : slot.content + slot.nbytes]
        for number in range(pieces):
            piece = content[number * PIECE : (number + 1) * PIECE]
            self.area.set_checked(slot, number, fingerprints.of_piece(number, piece))

    def copy(self, item: str) -> AreaCopy:
        """Begin to copy an item."""
        found = self.reader.find(item)
        assert found is not None
        begun = begin_copy(self.reader, found, 0.0)
        assert begun is not None
        return begun


def finish(copy: AreaCopy) -> None:
    """Copy all that is left."""
    room = np.zeros_like(CONTENT)
    while copy.advance(room, 1.0) and not copy.done:
        pass


@pytest.fixture
def published() -> Iterator[Published]:
    """Yield an area and its reader; close both."""
    with contextlib.closing(ItemArea(CAPACITY)) as area:
        made = Published(area)
        with contextlib.closing(made.reader):
            yield made


def test_an_item_is_found_with_its_shape(published: Published) -> None:
    """By its name only."""
    slot = published.put("a", CONTENT)
    assert published.reader.find("a") == FoundItem(
        slot.generation, slot.content, CONTENT.nbytes, CONTENT.nbytes // 4, 1, "float32"
    )
    assert published.reader.find("b") is None


@given(st.integers(1, CONTENT.nbytes), st.lists(st.integers(0, PIECES), max_size=4).map(sorted))
def test_a_copy_follows_the_fingerprints(size: int, stops: list[int]) -> None:
    """It never reads bytes that they do not cover, and ends with all bytes and the item's fingerprint."""
    content = CONTENT[:size]
    pieces = -(-size // PIECE)
    with contextlib.closing(ItemArea(CAPACITY)) as area:
        made = Published(area)
        slot = made.put("a", content)
        copy, room = made.copy("a"), np.zeros_like(content)
        for stop in (*stops, PIECES):
            made.check(slot, min(stop, pieces))
            while not copy.done and copy.advance(room, 1.0):
                assert not room[stop * PIECE :].any()
            covered = stop * PIECE
            assert np.array_equal(room[:covered], content[:covered])
            assert copy.done is (stop >= pieces)
        assert copy.checksum == fingerprints.of_item(memoryview(content))
        made.reader.close()


@given(st.binary(max_size=200), st.integers(0, 1599))
def test_a_fingerprint_is_of_all_bits_and_of_their_place(content: bytes, bit: int) -> None:
    """One bit, a byte less, and other places of the same pieces give other fingerprints."""
    print_ = fingerprints.of_item(content)
    changed = bytearray(content)
    if bit < 8 * len(content):
        changed[bit // 8] ^= 1 << bit % 8
        assert fingerprints.of_item(changed) != print_
    assert fingerprints.of_item(content + b"\0") != print_
    first, second = fingerprints.of_piece(0, content), fingerprints.of_piece(1, content)
    assert first != second
    assert fingerprints.of_pieces([first, second]) != fingerprints.of_pieces([second, first])


def test_damaged_bytes_are_noticed(published: Published) -> None:
    """Where the checksum next says how it should be."""
    slot = published.put("a", CONTENT)
    published.check(slot, PIECES)
    published.area.slots[slot.content + 5] ^= 1
    copy = published.copy("a")
    with pytest.raises(TransferError, match="fingerprint"):
        finish(copy)
    assert not copy.done


def test_an_eviction_is_noticed(published: Published) -> None:
    """Before, while and after the bytes of another item take the place."""
    slot = published.put("a", CONTENT)
    published.check(slot, PIECES)
    copy, room = published.copy("a"), np.zeros_like(CONTENT)
    assert copy.advance(room, 1.0)
    found = published.reader.find("a")
    published.area.withdraw(slot)
    assert published.reader.find("a") is None
    assert begin_copy(published.reader, found, 1.0) is None
    published.slots.free(slot)
    published.put("b", CONTENT[::-1])
    assert begin_copy(published.reader, found, 1.0) is None
    with pytest.raises(ItemGoneError):
        finish(copy)
    assert not copy.done
    with pytest.raises(ItemGoneError):
        AreaCopy(published.reader, FoundItem(slot.generation, slot.content, 4, 1, 1, "float32"), 0.0).advance(
            room, 1.0
        )


def test_two_items_at_one_place_of_the_table(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one is found; the earlier one is asked for by message, and its eviction leaves the later one's entry."""
    monkeypatch.setattr(item_area, "entry_offset", lambda digest: item_area.HEADER.size)
    first, second = published.put("a", CONTENT[:64]), published.put("b", CONTENT[:32])
    assert published.reader.find("a") is None
    published.area.withdraw(first)
    found = published.reader.find("b")
    assert found is not None
    assert found.generation == second.generation


def test_a_half_written_entry_is_not_taken(published: Published) -> None:
    """Nor is one that points outside."""
    slot = published.put("a", CONTENT[:64])
    at = CAPACITY + item_area.entry_offset(item_area.digest_of("a"))
    published.area._map[at + 20] ^= 1
    assert published.reader.find("a") is None
    for content, size in ((0, 64), (CAPACITY - 32, 64), (64, 1 << 62)):
        packed = item_area.ENTRY.pack(
            item_area.digest_of("a"), slot.generation, content, size, 16, 1, b"float32"
        )
        published.area._write(at, packed)
        assert published.reader.find("a") is None


def test_what_is_not_a_producers_memory(published: Published, tmp_path: Path) -> None:
    """A peer chooses the numbers: another token, a file, a pipe, nothing, and no process are not taken."""
    name = published.name
    read, write = os.pipe()
    with (tmp_path / "file").open("wb") as file, contextlib.closing(ItemArea(CAPACITY)) as other:
        for wrong in (
            dataclasses.replace(name, token=bytes(16)),
            dataclasses.replace(name, capacity=CAPACITY // 2),
            dataclasses.replace(name, capacity=2**63),
            dataclasses.replace(Published(other).name, token=name.token),
            AreaName(os.getpid(), file.fileno(), CAPACITY, name.token),
            AreaName(os.getpid(), read, CAPACITY, name.token),
            AreaName(os.getpid(), 2**31, CAPACITY, name.token),
            AreaName(2**31, name.fd, CAPACITY, name.token),
        ):
            with pytest.raises(AreaError):
                AreaReader(wrong)
    os.close(read)
    os.close(write)


def test_a_producer_that_has_closed_its_memory(published: Published) -> None:
    """Nobody else finds it; who reads it can go on."""
    slot = published.put("a", CONTENT[:64])
    published.check(slot, 1)
    copy, room = published.copy("a"), np.zeros(64, dtype=np.uint8)
    published.area.close()
    published.area.close()
    with pytest.raises(AreaError):
        AreaReader(published.name)
    assert copy.advance(room, 1.0)
    assert copy.done
    assert np.array_equal(room, CONTENT[:64])


def test_a_memory_that_was_left_amid_a_copy_is_an_item_that_is_gone(published: Published) -> None:
    """As when another item of the same producer came damaged: no error of the system's."""
    published.check(published.put("a", CONTENT), PIECES)
    copy = published.copy("a")
    room = np.zeros_like(CONTENT)
    assert copy.advance(room, 1.0)
    published.reader.close()
    with pytest.raises(ItemGoneError):
        copy.advance(room, 2.0)
    assert published.reader.find("a") is None


def test_the_memory_cannot_be_truncated(published: Published) -> None:
    """Not even by the producer, whose own mapping would end it."""
    seals = fcntl.fcntl(published.name.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(published.name.fd, 0)


def test_memory_that_can_be_truncated_is_not_mapped(published: Published) -> None:
    """To read what was cut off would end this process."""
    name = published.name
    fd = os.memfd_create(item_area.FILE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, item_area.size_of(CAPACITY))
        with pytest.raises(AreaError, match="can be cut short"):
            AreaReader(dataclasses.replace(name, fd=fd))
    finally:
        os.close(fd)
