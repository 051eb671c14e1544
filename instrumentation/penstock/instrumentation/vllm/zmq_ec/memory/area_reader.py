"""A consumer's access to the memory of a producer on the same host (``item_area.py``).

It reads the descriptor and maps nothing: memory of another process that is mapped, and truncated, ends its reader.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory import item_area
from penstock.instrumentation.vllm.zmq_ec.memory.slots import HEADER as SLOT_HEADER

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.memory.item_area import AreaName


class AreaError(RuntimeError):
    """The memory that a producer names is not there, or is none.

    Attributes:
        why: in words, without what the producer chose.

    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.why = why


class FoundItem(NamedTuple):
    """An item's entry."""

    generation: int
    content: int
    size: int
    rows: int
    width: int
    dtype: str


class AreaReader:
    """Finds and copies the items of one producer. One thread.

    What cannot be read, a closed memory's too, is not there: after the constructor nothing raises.
    """

    def __init__(self, name: AreaName) -> None:
        """Open the memory of that name.

        Raises:
            AreaError: it is not there, this process may not read it, or it is something else.

        """
        path = Path(f"/proc/{name.pid}/fd/{name.fd}")
        self._fd = -1
        try:
            # A peer chooses the numbers, and to open a device or a pipe can have effects.
            if not os.readlink(path).startswith(f"/memfd:{item_area.FILE} "):  # noqa: PTH115  (no path that exists)
                raise AreaError(path, "is no memory of a producer")
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            header = os.pread(self._fd, item_area.HEADER.size, name.capacity)
            regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        except (OSError, OverflowError) as error:
            self.close()
            raise AreaError(path, f"cannot be read: {getattr(error, 'strerror', error)}") from error
        if not regular or header != item_area.HEADER.pack(item_area.MAGIC, name.token):
            self.close()
            raise AreaError(path, "is not the memory that the producer means (any more)")
        self._name = name

    def find(self, item: str) -> FoundItem | None:
        """Return the entry of *item*, None if it has none."""
        digest = item_area.digest_of(item)
        at = self._name.capacity + item_area.entry_offset(digest)
        packed = self._read(at, item_area.ENTRY.size)
        if packed is None:
            return None
        named, generation, content, size, rows, width, dtype = item_area.ENTRY.unpack(packed)
        if named != digest or not SLOT_HEADER <= content <= content + size <= self._name.capacity:
            return None
        return FoundItem(generation, content, size, rows, width, dtype.rstrip(b"\0").decode(errors="replace"))

    def checked(self, found: FoundItem) -> int | None:
        """Return of how many bytes of an item there are fingerprints, None if the item is there no more."""
        packed = self._read(found.content - SLOT_HEADER, item_area.STATE.size)
        if packed is None:
            return None
        generation, upto = item_area.STATE.unpack(packed)
        return int(upto) if generation == found.generation else None

    def fingerprint(self, found: FoundItem, number: int) -> bytes:
        """Return the fingerprint of a piece of an item that :meth:`checked` covers."""
        start = found.content - SLOT_HEADER + number * fingerprints.PIECE
        return self._pread(fingerprints.SIZE, self._name.capacity + item_area.print_offset(start))

    def copy(self, found: FoundItem, offset: int, target: memoryview) -> bool:
        """Copy the bytes of an item from *offset* on that *target* has room for; return whether they were there."""
        try:
            return os.preadv(self._fd, [target], found.content + offset) == len(target)
        except (OSError, OverflowError):
            return False

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, at: int, size: int) -> bytes | None:
        return item_area.opened(self._pread(size + item_area.CHECK.size, at), self._name.token)

    def _pread(self, size: int, at: int) -> bytes:
        try:
            return os.pread(self._fd, size, at)
        except (OSError, OverflowError):
            return b""
