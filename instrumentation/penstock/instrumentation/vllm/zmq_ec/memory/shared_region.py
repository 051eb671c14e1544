"""The shared memory between the scheduler's process, which writes, and the workers, which read.

It is anonymous (``memfd``): it needs no room in /dev/shm, which is 64 MiB in a default container, and goes with its last
user, also after ``kill -9``. Workers open it by way of the scheduler's process, so they must be on its host.

Layout: a header with a magic word and a random token, so that a worker never takes another file for it; then the slots
(``slots.py``). A slot's header holds its generation while its content is whole and 0 while it is not.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from penstock.instrumentation.vllm.zmq_ec.memory import host_memory

_MAGIC: Final = b"penstock-ec-1\0\0\0"
_HEADER: Final = struct.Struct("16s16s")
_SLOT: Final = struct.Struct("QQ")

BEGIN: Final = 4096
"""Where the slots begin."""


class RegionError(RuntimeError):
    """The region, or the slot that was asked for, is not there; says why."""


@dataclass(frozen=True, slots=True)
class RegionName:
    """How a worker finds the region."""

    path: str
    size: int
    token: bytes


@dataclass(frozen=True, slots=True)
class SlotName:
    """A slot's offsets for the workers; *start* is that of its header, *content* that of its content."""

    generation: int
    start: int
    content: int
    nbytes: int


class SharedRegion:
    """The writer's side. One process, one thread at a time a slot."""

    def __init__(self, size: int) -> None:
        """Make a region of *size* bytes and reserve its memory, so that it cannot run out later.

        Raises:
            OutOfMemoryError: the host does not have that much.
            RegionError: or it gives none.

        """
        host_memory.check(size, "shared memory", "region_bytes")
        token = secrets.token_bytes(16)
        self._fd = -1
        try:
            self._fd = os.memfd_create("penstock-ec", os.MFD_CLOEXEC)
            os.ftruncate(self._fd, size)
            os.posix_fallocate(self._fd, 0, size)
            # Populated, because the first write to a page through a new mapping costs many times the copy.
            self._map = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except (OSError, ValueError, OverflowError) as error:
            if self._fd >= 0:
                os.close(self._fd)
            raise RegionError(
                f"ZmqECConnector cannot reserve {size} bytes of shared memory: {error}."
            ) from error
        self._bytes: Any = np.frombuffer(self._map, dtype=np.uint8)
        _HEADER.pack_into(self._map, 0, _MAGIC, token)
        self.name = RegionName(f"/proc/{os.getpid()}/fd/{self._fd}", size, token)

    def begin(self, start: int) -> None:
        """Mark the slot at *start* as not whole."""
        _SLOT.pack_into(self._map, start, 0, 0)

    def write(self, at: int, chunk: Any) -> None:
        """Copy *chunk* (bytes-like) to *at*, which is within a slot that is not whole."""
        source = np.frombuffer(chunk, dtype=np.uint8)
        np.copyto(self._bytes[at : at + source.nbytes], source)

    def room(self, at: int, nbytes: int) -> Any:
        """Return the bytes at *at*, which are within a slot that is not whole, to be written; not to be kept."""
        return self._bytes[at : at + nbytes]

    def seal(self, start: int, generation: int, nbytes: int) -> None:
        """Mark the slot at *start* as whole."""
        _SLOT.pack_into(self._map, start, generation, nbytes)

    def close(self) -> None:
        """Release it; workers that have it mapped keep it until they unmap it. Idempotent."""
        if self._fd >= 0:
            del self._bytes
            self._map.close()
            os.close(self._fd)
            self._fd = -1


class RegionView:
    """The reader's side."""

    def __init__(self, name: RegionName) -> None:
        """Map the region of that name.

        Raises:
            RegionError: it is not there, or is another one.

        """
        try:
            fd = os.open(name.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # Writable only because torch and numpy warn of memory that is not; no code writes here.
                self._map = mmap.mmap(fd, name.size)
            finally:
                os.close(fd)
        except (OSError, ValueError, OverflowError) as error:
            raise RegionError(
                f"the scheduler's shared memory {name.path} cannot be mapped: {error}. ZmqECConnector needs its "
                "workers in the same container as the scheduler."
            ) from error
        self.name = name
        if _HEADER.unpack_from(self._map) != (_MAGIC, name.token):
            self._map.close()
            raise RegionError(f"{name.path} is not the scheduler's shared memory (any more)")

    def check(self, slot: SlotName) -> None:
        """Check that the slot has that content.

        Raises:
            RegionError: it has another one.

        """
        if not BEGIN <= slot.start < slot.content <= slot.content + slot.nbytes <= self.name.size:
            raise RegionError(f"{slot} is outside the shared memory of {self.name.size} bytes")
        generation, nbytes = _SLOT.unpack_from(self._map, slot.start)
        if (generation, nbytes) != (slot.generation, slot.nbytes):
            raise RegionError(
                f"the slot has generation {generation} ({nbytes} bytes) now, not {slot.generation} ({slot.nbytes} bytes)"
            )

    def bytes_of(self, slot: SlotName) -> memoryview:
        """Return a slot's content; check before and after it is copied."""
        return memoryview(self._map)[slot.content : slot.content + slot.nbytes]

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._map.close()
