"""How a batch lies on disk."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.journal.packing import pack, unpack


@given(st.binary(max_size=5_000) | st.binary(min_size=1, max_size=40).map(lambda part: part * 100))
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


@pytest.mark.parametrize(("body", "packed"), [(b"", False), (b"x" * 511, False), (b"x" * 512, True)])
def test_what_is_worth_it(body, packed):
    """Small bodies stay as they are."""
    assert pack(body)[1] is packed


def test_what_a_bad_disk_has_spoilt():
    """It is told apart by whoever reads it, as any body that is none; a bomb stays small."""
    stored, _ = pack(b"x" * 10_000)
    assert unpack(b"\xff" + stored[1:], 1) == b"\xff" + stored[1:]
    bomb = zlib.compress(bytes(50 << 20))
    assert len(unpack(bomb, 1)) == 2 << 20
