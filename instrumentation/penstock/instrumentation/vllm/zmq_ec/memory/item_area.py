"""A producer's memory for its items, which consumers on the same host read without a message.

It is anonymous (``memfd``), like the shared region, and goes with its last user. It is sealed against
truncation, which would end the processes that have it mapped: its consumers have, read-only (``area_reader.py``).

Layout: the slots (``slots.py``); a header with a magic word and a random token; a table of entries; the fingerprints of
pieces. An entry says what and where an item is. Its place in the table follows from the item's name, and a later item
replaces an earlier one at the same place: then the earlier one is only found by message. A slot's header says of how many
bytes there are fingerprints. Both carry a check of their own bytes, so that a half-written one is not taken. The
fingerprints of a slot's pieces are where the pages of the pieces are, a page for 16 bytes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import mmap
import os
import secrets
import struct
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from penstock.instrumentation.vllm.ec import fingerprints
from penstock.instrumentation.vllm.zmq_ec.memory import host_memory
from penstock.instrumentation.vllm.zmq_ec.memory.slots import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.zmq_ec.memory.slots import Slot

logger = logging.getLogger("vllm.penstock.zmq_ec")

FILE: Final = "penstock-ec-items"

MAGIC: Final = b"penstock-items-1"
HEADER: Final = struct.Struct("=16s16s")
"""The magic word and the token."""

ENTRY: Final = struct.Struct("=16sQQQII16s")
"""The item's digest, its slot's generation, where its content begins, its bytes, rows, width and element type."""

STATE: Final = struct.Struct("=QQ")
"""The slot's generation, and how many bytes the fingerprints cover so far."""

CHECK: Final = struct.Struct("=I")
STRIDE: Final = 128
"""Bytes from one entry to the next."""

ENTRIES: Final = 8_192
_PRINTS: Final = HEADER.size + ENTRIES * STRIDE
_NO_FILE: Final = -1


@dataclass(frozen=True, slots=True)
class AreaName:
    """How a consumer finds the memory of a producer: *capacity* is that of the slots."""

    pid: int
    fd: int
    capacity: int
    token: bytes


@functools.cache
def this_place() -> bytes:
    """Return a digest of what processes share that can open each other's descriptors: the boot and the process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino).encode()
    except OSError:  # /proc is hidden: a place of its own
        return secrets.token_bytes(16)
    return hashlib.blake2b(boot + namespace, digest_size=16).digest()


def digest_of(item: str) -> bytes:
    """Return the digest of an item's name."""
    return hashlib.blake2b(item.encode(), digest_size=16).digest()


def entry_offset(digest: bytes) -> int:
    """Return where the entry of that digest is, after the slots."""
    return HEADER.size + int.from_bytes(digest[:4], "big") % ENTRIES * STRIDE


def print_offset(start: int) -> int:
    """Return where the fingerprint of the piece is that begins *start* bytes after the beginning of a page, after the slots."""
    return _PRINTS + start // ALIGNMENT * fingerprints.SIZE


def size_of(capacity: int) -> int:
    """Return the bytes of a memory whose slots have *capacity* bytes."""
    return capacity + print_offset(capacity) + fingerprints.SIZE


def sealed(packed: bytes, token: bytes) -> bytes:
    """Return *packed* with its check."""
    return packed + CHECK.pack(zlib.crc32(packed, zlib.crc32(token)))


def opened(found: bytes, token: bytes) -> bytes | None:
    """Return what *found* has before its check, None if the check is another."""
    packed = found[: -CHECK.size]
    return packed if sealed(packed, token) == found else None


class ItemArea:
    """The producer's side. The caller locks.

    Attributes:
        slots: the memory of the slots, as a numpy array of bytes.
        name: for consumers on this host; None if the system refuses a ``memfd``: then it is memory of this process only.

    """

    def __init__(self, capacity: int) -> None:
        """Take *capacity* bytes for slots, all of them backed by pages; and for the tables a megabyte and 0.4 % more.

        Raises:
            OutOfMemoryError: the host does not have them.

        """
        tables = size_of(capacity) - capacity
        host_memory.check(capacity, "encoder outputs", "host_cache_bytes", tables=tables)
        self._token = secrets.token_bytes(16)
        fd = _new_file()
        self._close = weakref.finalize(self, _close_file, fd)
        try:
            self._map = _map_all(fd, size_of(capacity))
        except (OSError, ValueError, OverflowError) as error:
            self._close()
            raise host_memory.OutOfMemoryError(
                f"ZmqECConnector cannot reserve {capacity} bytes for encoder outputs: {error}. Set host_cache_bytes."
            ) from error
        self._end = capacity
        self.slots: Any = np.frombuffer(self._map, dtype=np.uint8, count=capacity)
        self.name = None if fd == _NO_FILE else AreaName(os.getpid(), fd, capacity, self._token)
        HEADER.pack_into(self._map, capacity, MAGIC, self._token)

    def publish(self, slot: Slot, rows: int, width: int, dtype: str, prints: Iterable[bytes] = ()) -> None:
        """Let consumers find the item of *slot*, whose content is whole; its first pieces have these fingerprints."""
        self._write(slot.start, STATE.pack(slot.generation, 0))
        for number, fingerprint in enumerate(prints):
            self.set_checked(slot, number, fingerprint)
        digest = digest_of(slot.item)
        packed = ENTRY.pack(
            digest, slot.generation, slot.content, slot.nbytes, rows, width, dtype.encode().ljust(16, b"\0")
        )
        self._write(self._end + entry_offset(digest), packed)

    def set_checked(self, slot: Slot, number: int, fingerprint: bytes) -> None:
        """Publish the fingerprint of a piece; those of all pieces before it are there."""
        begin = number * fingerprints.PIECE
        at = self._end + print_offset(slot.start + begin)
        self._map[at : at + fingerprints.SIZE] = fingerprint
        upto = min(begin + fingerprints.PIECE, slot.nbytes)
        self._write(slot.start, STATE.pack(slot.generation, upto))

    def withdraw(self, slot: Slot) -> None:
        """Before the bytes of *slot* change: let no consumer find it, and let those that read it notice."""
        self._map[slot.start : slot.start + STATE.size] = bytes(STATE.size)
        digest = digest_of(slot.item)
        at = self._end + entry_offset(digest)
        if ENTRY.unpack_from(self._map, at)[:2] == (digest, slot.generation):
            self._map[at : at + ENTRY.size] = bytes(ENTRY.size)

    def close(self) -> None:
        """Close the descriptor: no further consumer finds it. The memory goes with its last user. Idempotent."""
        self._close()

    def _write(self, at: int, packed: bytes) -> None:
        whole = sealed(packed, self._token)
        self._map[at : at + len(whole)] = whole


def _new_file() -> int:
    """Return a descriptor of memory that other processes can open; none if the kernel or a seccomp profile refuses it."""
    try:
        return os.memfd_create(FILE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        logger.info("ZmqECConnector: no consumer can copy items out of this memory: memfd_create: %s", error)
        return _NO_FILE


def _close_file(fd: int) -> None:
    if fd != _NO_FILE:
        os.close(fd)


def _map_all(fd: int, size: int) -> mmap.mmap:
    """Map *size* bytes, all of them backed by pages: the first write to a page that is not costs many times the copy."""
    if fd == _NO_FILE:
        return mmap.mmap(_NO_FILE, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    os.ftruncate(fd, size)
    os.posix_fallocate(fd, 0, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
