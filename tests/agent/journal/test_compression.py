"""How a batch lies on disk."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.journal.compression import CHECKED, ZSTD, pack, unpack

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

BODIES = st.binary(max_size=5_000) | st.binary(min_size=1, max_size=40).map(lambda part: part * 100)


@given(BODIES)
def test_it_comes_back_as_it_was(body):
    """And never takes more room than before."""
    stored, packed = pack(body)
    assert len(stored) <= len(body)
    assert unpack(stored, packed) == body


@pytest.mark.parametrize("size", [2 << 20, (2 << 20) + 1, 5 << 20])
def test_what_is_large_comes_back_whole(size):
    """A loss that ends ten thousand waits is larger than any message of an engine."""
    body = b"r" * size
    assert unpack(*pack(body)) == body


@pytest.mark.parametrize(("body", "manner"), [(b"", CHECKED), (b"x" * 511, CHECKED), (b"x" * 512, ZSTD)])
def test_what_is_worth_it(body, manner):
    """Small bodies stay as they are."""
    assert pack(body)[1] & 1 == manner


@pytest.mark.parametrize("body", [bytes(range(256)) * 40, bytes(range(100))], ids=["packed", "plain"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_what_a_bad_disk_has_spoilt(place, body):
    """Both have a checksum: nothing comes back that is not what was stored."""
    stored, packed = pack(body)
    spoilt = bytearray(stored)
    spoilt[place] ^= 0x40
    assert unpack(bytes(spoilt), packed) == b""


def test_a_bomb_stays_small():
    """No more comes out of it than a batch can have."""
    bomb = zstd.compress(bytes(50 << 20), options={zstd.CompressionParameter.window_log: 21})
    assert len(unpack(bomb, ZSTD)) == 2 << 20


@pytest.mark.parametrize("packed", [2, 3, -1])
def test_an_unknown_manner(packed):
    """No agent writes it: nothing is read."""
    assert unpack(b"body", packed) == b""


def test_a_frame_that_asks_for_much_memory_is_not_unpacked():
    """A batch needs a window of its own size at most."""
    bomb = zstd.compress(bytes(50 << 20), options={zstd.CompressionParameter.window_log: 26})
    assert unpack(bomb, ZSTD) == b""
