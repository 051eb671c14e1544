"""One transfer: what is asked for, and what is taken."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import (
    WINDOW,
    ChunkedTransfer,
    TransferError,
)
from penstock.instrumentation.vllm.zmq_ec.wire import protocol


def content(payload: bytes, *, fingerprint: bool = False) -> protocol.Content:
    """Announce it."""
    shape = (len(payload), len(payload) // 4, 1, "float32")
    if fingerprint:
        return protocol.Content.of_fingerprint(fingerprints.of_item(payload), *shape)
    return protocol.Content(zlib.crc32(payload), *shape)


@pytest.mark.parametrize("fingerprint", [False, True])
@pytest.mark.parametrize("size", [1, fingerprints.PIECE, protocol.CHUNK_MAX, 3 * protocol.CHUNK_MAX + 5])
@pytest.mark.parametrize("damaged", [None, 0, -1])
def test_an_item_is_compared_with_what_was_announced(
    size: int, damaged: int | None, fingerprint: bool
) -> None:
    """By its CRC-32 or its fingerprint, over all of its bytes."""
    payload = bytearray(random.Random(size).randbytes(size))
    announced = content(bytes(payload), fingerprint=fingerprint)
    if damaged is not None:
        payload[damaged] ^= 0x10

    def receive() -> ChunkedTransfer:
        transfer = ChunkedTransfer(announced, 0.0)
        while not transfer.done:
            for offset, length in list(transfer.requests()):
                part = memoryview(payload)[offset : offset + length]
                transfer.accept(protocol.Chunk(1, announced.crc, offset, length), part, 1.0)
        return transfer

    if damaged is None:
        assert receive().checksum == (fingerprints.of_item(payload) if fingerprint else zlib.crc32(payload))
    else:
        with pytest.raises(TransferError, match="checksum"):
            receive()


@given(st.binary(min_size=1, max_size=200), st.integers(1, 20))
def test_all_bytes_are_asked_for_once_and_never_more_than_a_window(payload: bytes, chunk: int) -> None:
    """Whatever the sizes, the item is put together."""
    transfer = ChunkedTransfer(content(payload), 0.0, chunk=chunk)
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
    transfer = ChunkedTransfer(announced, 0.0)
    assert list(transfer.requests()) == [(0, 4)]
    with pytest.raises(TransferError, match=why):
        transfer.accept(protocol.Chunk(1, announced.crc if crc else 1, offset, length), payload, 1.0)
