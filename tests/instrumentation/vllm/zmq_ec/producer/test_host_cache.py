"""A producer's items on the host: one area of memory, and what is being sent stays as it is."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.zmq_ec.memory.host_memory import OutOfMemoryError
from penstock.instrumentation.vllm.zmq_ec.memory.slots import ALIGNMENT, HEADER
from penstock.instrumentation.vllm.zmq_ec.producer.host_cache import HostCache

PAGE = ALIGNMENT - HEADER


def put(cache: HostCache, item: str, nbytes: int = PAGE, fill: int = 1) -> bool:
    """Put an item of so many bytes."""

    def write(memory: Any) -> None:
        assert memory.nbytes == nbytes
        memory[:] = fill

    return cache.put(item, nbytes, write, nbytes, 1, "float32")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3), st.booleans())))
def test_it_is_a_least_recently_used_cache(actions: list[tuple[str, int, bool]]) -> None:
    """An item that is there was put last among at least as many bytes as there are; each has its own bytes."""
    cache = HostCache(6 * ALIGNMENT)
    model: OrderedDict[str, int] = OrderedDict()
    for item, pages, touch in actions:
        if touch or item in model:
            assert cache.touch(item) is (item in model)
        else:
            assert put(cache, item, pages * ALIGNMENT - HEADER, fill=ord(item))
            model[item] = pages
            for gone in [each for each in model if each not in cache._items]:
                assert gone != item
                del model[gone]
        if item in model:
            model.move_to_end(item)
        assert len(cache) == len(model)
        assert sum(model.values()) <= 6
        for each, size in model.items():
            assert set(cache.chunk(each, 0, size * ALIGNMENT - HEADER) or ()) == {ord(each)}


def test_an_item_that_is_there_is_not_put_again() -> None:
    """The same name is the same content."""
    cache = HostCache(2 * ALIGNMENT)
    assert put(cache, "a", fill=1)
    assert put(cache, "a", fill=2)
    chunk = cache.chunk("a", 0, 1)
    assert chunk is not None
    assert bytes(chunk) == b"\1"


def test_an_item_larger_than_all_is_refused_and_evicts_nothing() -> None:
    """What it had stays."""
    cache = HostCache(2 * ALIGNMENT)
    put(cache, "a")
    assert not put(cache, "b", 2 * ALIGNMENT)
    assert cache.touch("a")
    assert cache.refused == 1


def test_what_is_being_sent_stays_as_it_is() -> None:
    """A slow reader can keep new items out; when it has read, or is gone, there is room again."""
    cache = HostCache(2 * ALIGNMENT)
    put(cache, "a", fill=1)
    frame = cache.chunk("a", 10, 5)
    again = cache.chunk("a", 0, PAGE)
    put(cache, "b", fill=2)
    assert put(cache, "c", fill=3)  # in the place of "b", though that is younger
    assert cache.touch("a")
    assert not put(cache, "d", PAGE + ALIGNMENT)
    assert frame is not None
    assert bytes(frame) == b"\1" * 5
    del frame
    assert not put(cache, "d", PAGE + ALIGNMENT)
    del again
    assert put(cache, "d", PAGE + ALIGNMENT)


def test_the_checksum_is_of_the_bytes() -> None:
    """And is made once."""
    cache = HostCache(4 * ALIGNMENT)
    put(cache, "a", 40, fill=7)
    found = cache.content("a")
    assert found is not None
    assert (found.crc, found.size) == (zlib.crc32(b"\7" * 40), 40)
    assert cache.content("a") is found
    assert cache.content("b") is None
    assert cache.chunk("b", 0, 1) is None


def test_an_item_that_could_not_be_written_leaves_no_hole() -> None:
    """The device may fail while it is copied."""
    cache = HostCache(ALIGNMENT)

    def broken(memory: Any) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.put("a", PAGE, broken, 1, 1, "float32")
    assert not cache.touch("a")
    assert put(cache, "b")


@pytest.mark.parametrize("size", [0, 1 << 49])
def test_memory_that_the_host_does_not_have(size: int) -> None:
    """Is refused at start, with what to set."""
    with pytest.raises(OutOfMemoryError, match="host_cache_bytes"):
        HostCache(size)
