"""One transfer of one item by message: which chunks to ask for next, and whether what comes is right. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW: Final = 4
"""Chunks that are asked for and have not come."""


class TransferError(RuntimeError):
    """What came is not what was announced."""


class ChunkedTransfer:
    """Asks for *content* in order, a window at a time.

    Attributes:
        progress: when the last chunk came, or the transfer began.

    """

    def __init__(self, content: protocol.Content, now: float, *, chunk: int = protocol.CHUNK_MAX) -> None:
        self.content = content
        self.began = now
        self.progress = now
        self._chunk = chunk
        self._asked = 0
        self._received = 0
        self._sum: _Crc | _Fingerprint = _Fingerprint() if content.fingerprint else _Crc()

    @property
    def done(self) -> bool:
        """Whether all bytes have come."""
        return self._received == self.content.size

    @property
    def checksum(self) -> int | bytes:
        """The fingerprint or the CRC-32 of the item."""
        return self.content.checksum

    def requests(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of the chunks to ask for now."""
        while self._asked < self.content.size and self._asked - self._received < WINDOW * self._chunk:
            length = min(self._chunk, self.content.size - self._asked)
            yield self._asked, length
            self._asked += length

    def accept(self, header: protocol.Chunk, payload: Any, now: float) -> int:
        """Take a chunk and return its offset.

        Raises:
            TransferError: it was not asked for, is not as long as it says, or the whole has another checksum.

        """
        length = len(payload)
        if header.offset != self._received or header.length != length or header.crc != self.content.crc:
            raise TransferError(
                f"a chunk of {length} bytes (announced: {header.length}) at {header.offset} does not follow {self._received}"
            )
        if self._received + length > self._asked:
            raise TransferError(f"a chunk up to {self._received + length}, asked for up to {self._asked}")
        self._sum.add(payload)
        self._received += length
        self.progress = now
        if self.done and self._sum.result() != self.content.checksum:
            raise TransferError(
                f"checksum {_text(self._sum.result())} instead of {_text(self.content.checksum)}"
            )
        return header.offset


class _Crc:
    """The CRC-32 of chunks that follow each other."""

    def __init__(self) -> None:
        self._crc = 0

    def add(self, chunk: Any) -> None:
        self._crc = zlib.crc32(chunk, self._crc)

    def result(self) -> int:
        return self._crc


class _Fingerprint:
    """The fingerprint of chunks that follow each other; each but the last is of whole pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, chunk: Any) -> None:
        for at in range(0, len(chunk), fingerprints.PIECE):
            piece = chunk[at : at + fingerprints.PIECE]
            self._pieces.append(fingerprints.of_piece(len(self._pieces), piece))

    def result(self) -> bytes:
        return fingerprints.of_pieces(self._pieces)


def _text(checksum: int | bytes) -> str:
    return checksum.hex() if isinstance(checksum, bytes) else f"{checksum:08x}"
