"""How a batch lies on disk."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.journal.packing import PLAIN, ZLIB, ZSTD, pack, unpack, zstd

BODIES = st.binary(max_size=5_000) | st.binary(min_size=1, max_size=40).map(lambda part: part * 100)


@given(BODIES)
def test_it_comes_back_as_it_was(body):
    """And never takes more room than before."""
    stored, packed = pack(body)
    assert len(stored) <= len(body)
    assert unpack(stored, packed) == body


@given(BODIES)
def test_what_older_agents_wrote_comes_back(body):
    """They used zlib."""
    assert unpack(zlib.compress(body, 1), ZLIB) == body


@pytest.mark.parametrize("size", [2 << 20, (2 << 20) + 1, 5 << 20])
def test_what_is_large_comes_back_whole(size):
    """A loss that ends ten thousand waits is larger than any message of an engine."""
    body = b"r" * size
    assert unpack(*pack(body)) == body


@pytest.mark.parametrize(("body", "packed"), [(b"", PLAIN), (b"x" * 511, PLAIN), (b"x" * 512, ZSTD)])
def test_what_is_worth_it(body, packed):
    """Small bodies stay as they are."""
    assert pack(body)[1] == packed


@pytest.mark.parametrize("place", [0, 5, -1])
def test_what_a_bad_disk_has_spoilt(place):
    """Whoever reads it finds that it is no batch: the frame has a head and a checksum."""
    stored, packed = pack(bytes(range(256)) * 40)
    spoilt = bytearray(stored)
    spoilt[place] ^= 0x40
    assert unpack(bytes(spoilt), packed) == spoilt


@pytest.mark.parametrize(
    "bomb",
    [
        (zlib.compress(bytes(50 << 20)), ZLIB),
        (zstd.compress(bytes(50 << 20), options={zstd.CompressionParameter.window_log: 21}), ZSTD),
    ],
)
def test_a_bomb_stays_small(bomb):
    """No more comes out of it than a batch can have."""
    assert len(unpack(*bomb)) == 2 << 20


def test_a_frame_that_asks_for_much_memory_is_not_unpacked():
    """A batch needs a window of its own size at most."""
    bomb = zstd.compress(bytes(50 << 20), options={zstd.CompressionParameter.window_log: 26})
    assert unpack(bomb, ZSTD) == bomb
