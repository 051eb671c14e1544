"""The messages between a consumer and a producer. Pure.

A consumer's DEALER sends a request of one frame; the producer's ROUTER answers with one frame, a chunk with two: its
header and the bytes. All numbers are big-endian. Every message begins with::

    magic "PE" | version u8 | kind u8 | tag u64          the tag is the consumer's, the answer repeats it

    PROBE  model 16s | item                              is it there?
    FETCH  model 16s | crc u32 | offset u64 | length u32 | item     these bytes of the content with that checksum
    HAVE   model 16s | crc u32 | bytes u64 | rows u32 | width u32 | dtype   the item, as it would be sent
    MISS                                                 it is not there
    CHUNK  crc u32 | offset u64 | length u32   + a frame of ``length`` bytes
    REFUSED  reason u8 | text                            the producer does not understand the request, or will not

A fingerprint (``ec/fingerprints.py``) takes a fifth of the time of a CRC-32, so consumers ask for it where they can::

    LOOK   model 16s | item                              a PROBE that is answered with SEEN
    SEEN   model 16s | fingerprint 16s | bytes u64 | rows u32 | width u32 | dtype     a HAVE with a fingerprint

Its first four bytes are then the ``crc`` of FETCH and CHUNK. Between processes of one host, which share their process namespace, items need not travel (``memory/item_area.py``)::

    ATTACH model 16s | place 16s                         where is your memory? the place is the consumer's
    AREA   pid u32 | descriptor u32 | bytes u64 | token 16s     there; or MISS from another place
    TAKEN  model 16s | nanoseconds u64 | item            I have copied it, in that time; without an answer, and after AREA only

A consumer begins with ATTACH (with a place of zeros, if it wants no memory). A producer of an earlier version refuses it
as malformed; it is then asked as above, as it is by a consumer of an earlier version.

``item`` (vLLM's ``mm_hash``) is UTF-8 and takes the rest of the frame. ``crc`` is the CRC-32 of the whole item: it
names the content, so that two chunks never come from different contents. ``model`` is a digest (:func:`model_digest`).

A consumer asks for each chunk, so nothing is sent without a receiver, and a producer keeps no state of a transfer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"PE"
VERSION: Final = 1

ITEM_MAX: Final = 512
"""Bytes of an item's name."""

TEXT_MAX: Final = 200
"""Bytes of a refusal's text."""

DTYPE_MAX: Final = 16

CHUNK_MAX: Final = 1 << 20
"""Bytes of a chunk: the producer refuses to send more in one message."""

HEADER_MAX: Final = 1024
"""Bytes of any frame that is not a chunk's content."""

SIZE_MAX: Final = 1 << 40
ROWS_MAX: Final = 1 << 24
WIDTH_MAX: Final = 1 << 24

DTYPE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
"""The element types that travel, by torch's names, and their size."""


class Kind(enum.IntEnum):
    """What a message is."""

    PROBE = 1
    FETCH = 2
    HAVE = 3
    MISS = 4
    CHUNK = 5
    REFUSED = 6
    ATTACH = 7
    AREA = 8
    TAKEN = 9
    LOOK = 10
    SEEN = 11


class Reason(enum.IntEnum):
    """Why a producer refuses."""

    MALFORMED = 1
    VERSION = 2
    MODEL = 3
    TOO_LARGE = 4
    CHANGED = 5
    BUSY = 6


class WireError(ValueError):
    """A frame that is not what the module's text says; *reason* is what a producer answers, *tag* the request's if known."""

    def __init__(self, message: str, reason: Reason = Reason.MALFORMED, tag: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.tag = tag


@dataclass(frozen=True, slots=True)
class Content:
    """An item's content as it is announced: *size* bytes, *rows* x *width* elements of *dtype*, row by row.

    Attributes:
        crc: names the content in FETCH and CHUNK; its CRC-32 if there is no *fingerprint*.

    """

    crc: int
    size: int
    rows: int
    width: int
    dtype: str
    fingerprint: bytes = b""

    @classmethod
    def of_fingerprint(cls, fingerprint: bytes, size: int, rows: int, width: int, dtype: str) -> Content:
        """Return the content that has a fingerprint."""
        return cls(int.from_bytes(fingerprint[:4], "big"), size, rows, width, dtype, fingerprint)

    @property
    def checksum(self) -> int | bytes:
        """The fingerprint, or the CRC-32."""
        return self.fingerprint or self.crc

    def problem(self) -> str:
        """Return why this cannot be a tensor, in words; empty if it can."""
        if self.dtype not in DTYPE_BYTES:
            return f"element type {self.dtype!r} is none of {', '.join(DTYPE_BYTES)}"
        if not 0 < self.rows <= ROWS_MAX or not 0 < self.width <= WIDTH_MAX:
            return f"shape {self.rows} x {self.width} is empty or too large"
        expected = self.rows * self.width * DTYPE_BYTES[self.dtype]
        if self.size != expected:
            return f"{self.size} bytes are not {self.rows} x {self.width} of {self.dtype} ({expected} bytes)"
        return "" if self.size <= SIZE_MAX else f"{self.size} bytes are too many"


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether *item* is there; with its fingerprint if the consumer asks for that."""

    tag: int
    model: bytes
    item: str
    fingerprint: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send these bytes of *item*, if its content is still that with *crc*."""

    tag: int
    model: bytes
    crc: int
    offset: int
    length: int
    item: str


@dataclass(frozen=True, slots=True)
class Have:
    """The item is there."""

    tag: int
    model: bytes
    content: Content


@dataclass(frozen=True, slots=True)
class Miss:
    """The item is not there."""

    tag: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The header of some bytes of an item; they follow in a frame of their own."""

    tag: int
    crc: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The producer will not answer."""

    tag: int
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Attach:
    """Where the memory is, if the consumer's *place* is the producer's."""

    tag: int
    model: bytes
    place: bytes


@dataclass(frozen=True, slots=True)
class Area:
    """The memory is that of a descriptor of a process; *capacity* are the bytes of its slots."""

    tag: int
    pid: int
    fd: int
    capacity: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """A consumer has copied *item* out of the memory, in so many nanoseconds."""

    tag: int
    model: bytes
    nanos: int
    item: str


Request = Probe | Fetch | Attach | Taken
Answer = Have | Miss | Chunk | Refused | Area
