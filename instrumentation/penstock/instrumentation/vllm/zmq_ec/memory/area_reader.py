"""A consumer's access to the memory of a producer on the same host (``item_area.py``).

It maps the memory, read-only. Memory of another process that is mapped, and truncated, ends its reader, so it maps only
what is sealed against that.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory import item_area
from penstock.instrumentation.vllm.zmq_ec.memory.slots import HEADER as SLOT_HEADER

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.zmq_ec.memory.item_area import AreaName


_NOTHING: Final = np.empty(0, dtype=np.uint8)


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
    """Finds and copies the items of one producer. Thread-safe.

    What cannot be read, a closed memory's too, is not there: after the constructor nothing raises.
    """

    def __init__(self, name: AreaName) -> None:
        """Open the memory of that name.

        Raises:
            AreaError: it is not there, this process may not read it, or it is something else.

        """
        path = Path(f"/proc/{name.pid}/fd/{name.fd}")
        try:
            # A peer chooses the numbers, and to open a device or a pipe can have effects.
            if not os.readlink(path).startswith(f"/memfd:{item_area.FILE} "):  # noqa: PTH115  (no path that exists)
                raise AreaError(path, "is no memory of a producer")
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self._bytes = _mapped(fd, path, item_area.size_of(name.capacity))
            finally:
                os.close(fd)
        except (OSError, OverflowError, ValueError) as error:
            raise AreaError(path, f"cannot be read: {getattr(error, 'strerror', error)}") from error
        self._name = name
        if self._slice(name.capacity, item_area.HEADER.size) != item_area.HEADER.pack(
            item_area.MAGIC, name.token
        ):
            self.close()
            raise AreaError(path, "is not the memory that the producer means (any more)")

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
        return self._slice(self._name.capacity + item_area.print_offset(start), fingerprints.SIZE)

    def copy(self, found: FoundItem, offset: int, target: memoryview) -> bool:
        """Copy the bytes of an item from *offset* on that *target* has room for; return whether they were there."""
        begin = found.content + offset
        source = self._bytes[begin : begin + len(target)]
        if len(source) < len(target):
            return False
        # numpy releases the interpreter's lock meanwhile.
        np.copyto(np.frombuffer(target, dtype=np.uint8), source)
        return True

    def close(self) -> None:
        """Unmap it. Idempotent."""
        # The mapping ends with the last array of it.
        self._bytes = _NOTHING

    def _read(self, at: int, size: int) -> bytes | None:
        return item_area.opened(self._slice(at, size + item_area.CHECK.size), self._name.token)

    def _slice(self, at: int, size: int) -> bytes:
        return bytes(self._bytes[at : at + size])


def _mapped(fd: int, path: Path, size: int) -> Any:
    """Return the *size* bytes of a descriptor's memory as an array.

    Raises:
        AreaError: it has another size or owner, or can be truncated.
        OSError: it is no memory, or there is no room for it.
        OverflowError: no address space has so many bytes.

    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise AreaError(path, "has not the size that the producer says")
    # A hole in memory of huge pages can end its reader, and another user may mean harm.
    if os.fstatvfs(fd).f_bsize != mmap.PAGESIZE or found.st_uid != os.geteuid():
        raise AreaError(path, "is of another user, or of huge pages, so that it is not mapped")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise AreaError(path, "can be cut short, so that it is not mapped")
    return np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), dtype=np.uint8)
