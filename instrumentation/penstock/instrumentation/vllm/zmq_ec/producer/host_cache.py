"""A producer's encoder outputs on the host, in one area that is allocated at start.

The model's thread puts, and computes the fingerprints of small items; the server's thread reads, and computes CRC-32 and the other
fingerprints, which consumers on the same host follow. An
item on its way to a consumer is not evicted until it is sent, so slow consumers can keep new items out while they stay
connected, but never make the memory grow. A consumer on the same host keeps nothing: it notices that an item is evicted.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory import Slot, Slots
from penstock.instrumentation.vllm.zmq_ec.memory.item_area import ItemArea
from penstock.instrumentation.vllm.zmq_ec.wire import Content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.instrumentation.vllm.zmq_ec.memory.item_area import AreaName

SMALL: Final = 256 << 10
"""Bytes of the largest item whose fingerprint is computed where it is put: that takes less than to wake the server's thread."""

_NEVER: Final = float("inf")


@dataclass(slots=True)
class Kept:
    """An item's slot and shape; *content* is None until its CRC-32 is computed, *printed* until its fingerprint is."""

    slot: Slot
    rows: int
    width: int
    dtype: str
    content: Content | None = None
    printed: Content | None = None


class HostCache:
    """Least recently used first out. Thread-safe.

    Attributes:
        refused: items for which there was no room.

    """

    def __init__(self, capacity: int) -> None:
        """Take *capacity* bytes.

        Raises:
            OutOfMemoryError: the host does not have them.

        """
        self.capacity = capacity
        self.refused = 0
        self._area = ItemArea(capacity)
        self._slots = Slots(0, capacity)
        self._lock = threading.Lock()
        self._items: dict[str, Kept] = {}
        self._released: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def area(self) -> AreaName | None:
        """How a consumer on this host finds the memory; None where it cannot."""
        return self._area.name

    def close(self) -> None:
        """Let no further consumer on this host find the memory. Idempotent."""
        self._area.close()

    def touch(self, item: str) -> bool:
        """Whether *item* is there; it is then the newest."""
        with self._lock:
            return self._find(item) is not None

    def put(
        self, item: str, nbytes: int, fill: Callable[[Any], None], rows: int, width: int, dtype: str
    ) -> bool:
        """Keep *item*: *fill* writes its bytes to the array it gets.

        Returns:
            Whether there was room, or the item was there already: the same name is the same content.

        """
        with self._lock:
            if self._find(item) is not None:
                return True
            self._reclaim()
            slot, evicted = self._slots.allocate(item, nbytes, 0.0)
            for each in evicted:
                self._area.withdraw(each)
                del self._items[each.item]
            if slot is None:
                self.refused += 1
                return False
        memory = self._area.slots[slot.content : slot.content + nbytes]
        try:
            fill(memory)
        except BaseException:
            with self._lock:
                self._slots.free(slot)
            raise
        kept = Kept(slot, rows, width, dtype)
        whole = _prints(memory)
        if whole:
            kept.printed = _printed(kept, whole)
        with self._lock:
            self._slots.seal(slot, 0.0)
            self._items[item] = kept
            self._area.publish(slot, rows, width, dtype, whole)
        return True

    def printed(self, item: str) -> Content | None:
        """Return the content of *item* with its fingerprint; the first call computes it, and consumers on this host follow."""
        with self._lock:
            kept = self._find(item)
            if kept is None or kept.printed is not None:
                return None if kept is None else kept.printed
            whole = self._export(kept.slot, 0, kept.slot.nbytes)
        # Outside the lock; what is exported is not evicted.
        pieces = []
        for number, begin in enumerate(range(0, kept.slot.nbytes, fingerprints.PIECE)):
            pieces.append(fingerprints.of_piece(number, whole[begin : begin + fingerprints.PIECE]))
            self._area.set_checked(kept.slot, number, pieces[-1])
        kept.printed = _printed(kept, pieces)
        return kept.printed

    def named(self, item: str, crc: int) -> Content | None:
        """Return the content of *item* that goes by *crc* if it has one, else one that does not; None without the item."""
        with self._lock:
            kept = self._find(item)
            printed = None if kept is None else kept.printed
        return printed if printed is not None and printed.crc == crc else self.content(item)

    def content(self, item: str) -> Content | None:
        """Return the content of *item* with its CRC-32; the first call computes it."""
        with self._lock:
            kept = self._find(item)
            if kept is None or kept.content is not None:
                return None if kept is None else kept.content
            whole = self._export(kept.slot, 0, kept.slot.nbytes)
        # Outside the lock: it takes milliseconds.
        content = Content(zlib.crc32(whole), kept.slot.nbytes, kept.rows, kept.width, kept.dtype)
        kept.content = content
        return content

    def chunk(self, item: str, offset: int, length: int) -> memoryview | None:
        """Return bytes of *item*, unchanged while they are referenced; None if it is not (or no longer) there.

        The caller has checked them against its content.
        """
        with self._lock:
            kept = self._find(item)
            return None if kept is None else self._export(kept.slot, offset, length)

    def _find(self, item: str) -> Kept | None:
        kept = self._items.get(item)
        if kept is not None:
            self._slots.touch(kept.slot)
        return kept

    def _export(self, slot: Slot, offset: int, length: int) -> memoryview:
        begin = slot.content + offset
        view = self._area.slots[begin : begin + length]
        self._reclaim()
        self._slots.pin(slot, 1, until=_NEVER)
        # Called wherever the last reference dies, even below the lock: it may only append.
        weakref.finalize(view, self._released.append, slot.generation).atexit = False
        return memoryview(view)

    def _reclaim(self) -> None:
        while self._released:
            self._slots.on_report(self._released.popleft())


def _prints(memory: Any) -> list[bytes]:
    """Return the fingerprints of the pieces of a small item, which has one; none of another one, or if that fails."""
    if len(memory) > SMALL or not fingerprints.available():
        return []
    try:
        return [fingerprints.of_piece(0, memory)]
    except Exception:  # noqa: BLE001  (the server's thread tries again, and counts it)
        return []


def _printed(kept: Kept, pieces: Iterable[bytes]) -> Content:
    """Return the content of an item whose pieces have these fingerprints."""
    fingerprint = fingerprints.of_pieces(pieces)
    return Content.of_fingerprint(fingerprint, kept.slot.nbytes, kept.rows, kept.width, kept.dtype)
