"""A producer's items on the host: what is held is never more than its capacity."""

from __future__ import annotations

import zlib
from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.zmq_ec.host_cache import HostCache


def put(cache: HostCache, item: str, size: int, fill: int = 1) -> bool:
    """Put an item of so many bytes."""
    return cache.put(item, np.full(size, fill, dtype=np.uint8), size, 1, "float32")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 60), st.booleans())))
def test_it_is_a_least_recently_used_cache_of_bytes(actions: list[tuple[str, int, bool]]) -> None:
    """Like the simplest model of one."""
    cache = HostCache(100)
    model: OrderedDict[str, int] = OrderedDict()
    for item, size, touch in actions:
        if touch or item in model:
            assert cache.touch(item) is (item in model)
        else:
            assert put(cache, item, size)
            while sum(model.values()) + size > 100:
                model.popitem(last=False)
            model[item] = size
        if item in model:
            model.move_to_end(item)
        assert cache.held == sum(model.values()) <= 100
        assert [each for each in "abcdef" if cache._items.get(each)] == sorted(model)


def test_an_item_that_is_there_is_not_put_again() -> None:
    """The same name is the same content."""
    cache = HostCache(100)
    assert put(cache, "a", 60, fill=1)
    assert put(cache, "a", 60, fill=2)
    kept = cache.get("a")
    assert kept is not None
    assert kept.memory[0] == 1
    assert cache.held == 60


def test_an_item_larger_than_all_is_refused_and_evicts_nothing() -> None:
    """What it had stays."""
    cache = HostCache(100)
    put(cache, "a", 60)
    assert not put(cache, "b", 101)
    assert cache.touch("a")
    assert cache.refused == 1


def test_bytes_that_are_still_being_sent_count() -> None:
    """A slow reader keeps an evicted item's memory; new items wait for it rather than adding to it."""
    cache = HostCache(100)
    put(cache, "a", 80)
    kept = cache.get("a")
    assert kept is not None
    frame = kept.memory[10:20]
    del kept
    assert not put(cache, "b", 60)  # "a" is evicted, and alive
    assert not cache.touch("a")
    assert cache.held == 80
    assert bytes(frame) == b"\1" * 10
    del frame
    assert cache.held == 0
    assert put(cache, "b", 60)


def test_the_checksum_is_of_the_bytes() -> None:
    """And is made once."""
    cache = HostCache(100)
    put(cache, "a", 40, fill=7)
    found = cache.content("a")
    assert found is not None
    assert found[1].crc == zlib.crc32(b"\7" * 40)
    assert cache.content("a") == found
    assert cache.content("b") is None
