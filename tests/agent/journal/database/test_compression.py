"""How a batch lies on disk."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.journal.database.stored_rows import CHECKED, ZSTD, pack, unpack

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

BODIES = st.binary(max_size=5_000) | st.binary(min_size=1, max_size=40).map(lambda part: part * 100)


@given(BODIES)
def test_it_comes_back_as_it_was(body):
    """Unpacking returns the body; the packed form is never larger."""
    stored, packed = pack(body)
    assert len(stored) <= len(body)
    assert unpack(stored, packed) == body


@pytest.mark.parametrize("size", [2 << 20, (2 << 20) + 1, 5 << 20])
def test_what_is_large_comes_back_whole(size):
    """A body larger than an engine's largest message survives: a loss that ends 10,000 deferrals."""
    body = b"r" * size
    assert unpack(*pack(body)) == body


@pytest.mark.parametrize(("body", "manner"), [(b"", CHECKED), (b"x" * 511, CHECKED), (b"x" * 512, ZSTD)])
def test_what_is_worth_it(body, manner):
    """Only large bodies are compressed."""
    assert pack(body)[1] & 1 == manner


@pytest.mark.parametrize("body", [bytes(range(256)) * 40, bytes(range(100))], ids=["packed", "plain"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_what_a_bad_disk_has_spoilt(place, body):
    """A damaged body raises in both formats: both have a checksum."""
    stored, packed = pack(body)
    spoilt = bytearray(stored)
    spoilt[place] ^= 0x40
    assert unpack(bytes(spoilt), packed) == b""


def test_a_bomb_stays_small():
    """Unpacking stops at the size limit of a batch."""
    bomb = zstd.compress(bytes(50 << 20), options={zstd.CompressionParameter.window_log: 21})
    assert len(unpack(bomb, ZSTD)) == 2 << 20


@pytest.mark.parametrize("packed", [2, 3, -1])
def test_an_unknown_manner(packed):
    """An unknown format raises."""
    assert unpack(b"body", packed) == b""


def test_a_frame_that_asks_for_much_memory_is_not_unpacked():
    """A frame with a window larger than a batch raises."""
    bomb = zstd.compress(bytes(50 << 20), options={zstd.CompressionParameter.window_log: 26})
    assert unpack(bomb, ZSTD) == b""
