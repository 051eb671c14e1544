"""One transfer of one item out of the memory of a producer on the same host. It reads what the checksum covers, and no more."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.zmq_ec.consumer.transfer import TransferError
from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import CheckedBytes
from penstock.instrumentation.vllm.zmq_ec.wire import Content

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader, FoundItem

PIECE: Final = 512 << 10
"""Bytes that are copied at a time: they are still in the processor's cache when their checksum is computed."""


class ItemGoneError(RuntimeError):
    """The producer has evicted the item while it was copied."""


def content_of(found: FoundItem) -> Content:
    """Return the content of an entry; its checksum is not known yet."""
    return Content(0, found.size, found.rows, found.width, found.dtype)


class AreaCopy:
    """Copies *found* in order, a piece at a time, as far as the producer has computed its checksum.

    Attributes:
        content: its checksum is right once the copy is done.
        progress: when the last piece came, or the transfer began.

    """

    def __init__(self, area: AreaReader, found: FoundItem, now: float) -> None:
        self.content = content_of(found)
        self.progress = now
        self._area = area
        self._found = found
        self._received = 0
        self._crc = 0
        self._checked = CheckedBytes(0, 0)

    @property
    def done(self) -> bool:
        """Whether all bytes have come, and are what the producer has."""
        return self._received == self.content.size

    def advance(self, room: Any, now: float) -> bool:
        """Copy the next piece to its place in *room*, a buffer of the content's size; return False if nothing is there yet.

        Raises:
            ItemGoneError: the item was evicted.
            TransferError: the bytes have another checksum than the producer's.

        """
        if self._received >= self._checked.upto:
            self._checked = self._look()
            if self._received >= self._checked.upto:
                return False
        end = min(self._received + PIECE, self._checked.upto)
        piece = room[self._received : end]
        if not self._area.copy(self._found, self._received, piece):
            raise TransferError(f"bytes up to {end} cannot be read from the producer's memory")
        self._crc = zlib.crc32(piece, self._crc)
        if end == self._checked.upto and self._crc != self._checked.crc:
            self._look()
            raise TransferError(f"checksum {self._crc:08x} of {end} bytes instead of {self._checked.crc:08x}")
        self._received = end
        self.progress = now
        if self.done:
            self.content = replace(self.content, crc=self._crc)
        return True

    def _look(self) -> CheckedBytes:
        found = self._area.checked(self._found)
        if found is None:
            raise ItemGoneError("the producer evicted it")
        if found.upto > self.content.size:
            raise TransferError(f"a checksum of {found.upto} bytes of an item of {self.content.size}")
        return found
