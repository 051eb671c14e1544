"""One transfer of one item out of the memory of a producer on the same host. It reads what has fingerprints, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.consumer.chunked_transfer import TransferError
from penstock.instrumentation.vllm.zmq_ec.wire import Content

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.memory.area_reader import AreaReader, FoundItem


class ItemGoneError(RuntimeError):
    """The producer has evicted the item while it was copied."""


def content_of(found: FoundItem) -> Content:
    """Return the content of an entry; it names no CRC-32."""
    return Content(0, found.size, found.rows, found.width, found.dtype)


def find_same(area: AreaReader | None, item: str, content: Content) -> FoundItem | None:
    """Return the entry of *item*; None without an *area*, or where it has another content than *content*."""
    found = None if area is None else area.find(item)
    if found is None:
        return None
    there = content_of(found)
    same = (there.size, there.rows, there.dtype) == (content.size, content.rows, content.dtype)
    return found if same else None


def begin_copy(area: AreaReader | None, found: FoundItem | None, now: float) -> AreaCopy | None:
    """Begin to copy what was *found* in *area*; None without either, or if it is there no more."""
    if area is None or found is None:
        return None
    checked = area.checked(found)
    return None if checked is None else AreaCopy(area, found, now, checked)


class AreaCopy:
    """Copies *found* in order, a piece at a time, as far as the producer has computed the fingerprints.

    Attributes:
        progress: when the last piece came, or the transfer began.
        done: whether all bytes have come, and are what the producer has.
        asked: whether the producer has been asked for the fingerprints that are not there yet.

    """

    def __init__(self, area: AreaReader, found: FoundItem, now: float, checked: int = 0) -> None:
        """Begin; there are fingerprints of the first *checked* bytes at least."""
        self.progress = now
        self.done = False
        self.asked = False
        self._area = area
        self._found = found
        self._checked = checked
        self._prints: list[bytes] = []

    @property
    def ready(self) -> bool:
        """Whether there were fingerprints of all bytes when it began."""
        return self._checked >= self._found.size

    @property
    def checksum(self) -> bytes:
        """The fingerprint of the item, once all of it has come."""
        return fingerprints.of_pieces(self._prints)

    def advance(self, room: Any, now: float, pieces: int = 1) -> bool:
        """Copy the next *pieces* to their places in *room*, a buffer of the item's size; return False if none is there yet.

        Raises:
            ItemGoneError: the item was evicted.
            TransferError: the bytes have another fingerprint than the producer's.

        """
        before = len(self._prints)
        while not self.done and len(self._prints) - before < pieces:
            if not self._copy_piece(room):
                break
        moved = len(self._prints) > before
        if moved:
            self.progress = now
        return moved

    def _copy_piece(self, room: Any) -> bool:
        number, size = len(self._prints), self._found.size
        begin = number * fingerprints.PIECE
        end = min(begin + fingerprints.PIECE, size)
        if end > self._checked:
            self._checked = self._look()
            if end > self._checked:
                return False
        piece = room[begin:end]
        whole = self._area.copy(self._found, begin, piece)
        expected = self._area.fingerprint(self._found, number)
        if not whole or fingerprints.of_piece(number, piece) != expected:
            self._look()
            raise TransferError(
                f"the bytes from {begin} to {end} have another fingerprint than the producer's"
            )
        if end == size:
            # What is still there now was there all the time: bytes and fingerprints are those of this item.
            self._look()
            self.done = True
        self._prints.append(expected)
        return True

    def _look(self) -> int:
        upto = self._area.checked(self._found)
        if upto is None:
            raise ItemGoneError("the producer evicted it")
        return upto
