"""A producer's encoder outputs on the host: the newest that fit into a number of bytes.

The model's thread puts, the server's thread reads. Frames on their way to a slow consumer keep the memory of an evicted
item alive, so it counts until its last user has let go: what is held never exceeds the capacity.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from penstock.instrumentation.vllm.zmq_ec.wire import Content


@dataclass(slots=True)
class Kept:
    """An item.

    Attributes:
        memory: its bytes.
        content: what they are; None until :meth:`HostCache.content` has made the checksum.

    """

    memory: memoryview
    rows: int
    width: int
    dtype: str
    content: Content | None = None


class HostCache:
    """Least recently used first out. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        """Hold at most *capacity* bytes."""
        self.capacity = capacity
        self.refused = 0
        self.evicted = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[str, Kept] = OrderedDict()
        self._held = 0
        self._released: deque[int] = deque()

    @property
    def held(self) -> int:
        """Bytes that are alive: of the items, and of evicted ones that are still being sent."""
        with self._lock:
            return self._settle()

    def __len__(self) -> int:
        return len(self._items)

    def touch(self, item: str) -> bool:
        """Whether *item* is there; it is then the newest."""
        with self._lock:
            return self._find(item) is not None

    def put(self, item: str, buffer: Any, rows: int, width: int, dtype: str) -> bool:
        """Keep *item*, whose bytes are those of *buffer* (one that can be weakly referenced); nobody may change them.

        Returns:
            Whether there was room. Bytes that consumers still read make none.

        """
        memory = memoryview(buffer).cast("B")
        size = memory.nbytes
        with self._lock:
            if self._find(item) is not None:
                return True
            if size > self.capacity:
                self.refused += 1
                return False
            while self._settle() + size > self.capacity and self._items:
                # No reference may stay here: the memory is free when the last one goes.
                self._items.popitem(last=False)
                self.evicted += 1
            if self._settle() + size > self.capacity:
                self.refused += 1
                return False
            self._held += size
            # Called wherever the last reference dies, even below this lock: it may only append.
            weakref.finalize(buffer, self._released.append, size).atexit = False
            self._items[item] = Kept(memory, rows, width, dtype)
            return True

    def get(self, item: str) -> Kept | None:
        """Return *item*, which is then the newest."""
        with self._lock:
            return self._find(item)

    def content(self, item: str) -> tuple[Kept, Content] | None:
        """Return *item* with its checksum, which is made at the first call."""
        kept = self.get(item)
        if kept is None:
            return None
        content = kept.content
        if content is None:
            # Outside the lock: it takes milliseconds. Two threads that make it at once make the same.
            content = Content(zlib.crc32(kept.memory), kept.memory.nbytes, kept.rows, kept.width, kept.dtype)
            kept.content = content
        return kept, content

    def _find(self, item: str) -> Kept | None:
        kept = self._items.get(item)
        if kept is not None:
            self._items.move_to_end(item)
        return kept

    def _settle(self) -> int:
        while self._released:
            self._held -= self._released.popleft()
        return self._held
