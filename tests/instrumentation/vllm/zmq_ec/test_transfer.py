"""One transfer: what is asked for, and what is taken."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.zmq_ec.consumer.transfer import WINDOW, Transfer, TransferError
from penstock.instrumentation.vllm.zmq_ec.wire import protocol


def content(payload: bytes) -> protocol.Content:
    """Announce it."""
    return protocol.Content(zlib.crc32(payload), len(payload), len(payload) // 4, 1, "float32")


@given(st.binary(min_size=1, max_size=200), st.integers(1, 20))
def test_all_bytes_are_asked_for_once_and_never_more_than_a_window(payload: bytes, chunk: int) -> None:
    """Whatever the sizes, the item is put together."""
    transfer = Transfer(content(payload), 0.0, chunk=chunk)
    asked: list[tuple[int, int]] = []
    built = b""
    while not transfer.done:
        asked += transfer.requests()
        assert 0 < len(asked) <= WINDOW
        offset, length = asked.pop(0)
        part = payload[offset : offset + length]
        assert transfer.accept(protocol.Chunk(1, zlib.crc32(payload), offset, length), part, 1.0) == len(
            built
        )
        built += part
    assert built == payload
    assert not asked
    assert not list(transfer.requests())


@pytest.mark.parametrize(
    ("crc", "offset", "length", "payload", "why"),
    [
        (True, 4, 4, b"abcd", "does not follow"),
        (True, 0, 4, b"abc", "does not follow"),
        (True, 0, 5, b"abcde", "asked for up to 4"),
        (False, 0, 4, b"abcd", "does not follow"),
        (True, 0, 4, b"abcX", "checksum"),
    ],
)
def test_what_is_not_taken(crc: bool, offset: int, length: int, payload: bytes, why: str) -> None:
    """Out of order, of another length, too much, of another content, or corrupt."""
    announced = content(b"abcd")
    transfer = Transfer(announced, 0.0)
    assert list(transfer.requests()) == [(0, 4)]
    with pytest.raises(TransferError, match=why):
        transfer.accept(protocol.Chunk(1, announced.crc if crc else 1, offset, length), payload, 1.0)
