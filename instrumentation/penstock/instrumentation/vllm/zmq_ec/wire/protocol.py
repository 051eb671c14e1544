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

``item`` (vLLM's ``mm_hash``) is UTF-8 and takes the rest of the frame. ``crc`` is the CRC-32 of the whole item: it
names the content, so that two chunks never come from different contents. ``model`` is a digest (:func:`model_digest`).

A consumer asks for each chunk, so nothing is sent without a receiver, and a producer keeps no state of a transfer.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass
from typing import Any, Final

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

_PREFIX: Final = struct.Struct(">2sBBQ")
_PROBE: Final = struct.Struct(">16s")
_FETCH: Final = struct.Struct(">16sIQI")
_HAVE: Final = struct.Struct(">16sIQII")
_CHUNK: Final = struct.Struct(">IQI")
_REFUSED: Final = struct.Struct(">B")


class Kind(enum.IntEnum):
    """What a message is."""

    PROBE = 1
    FETCH = 2
    HAVE = 3
    MISS = 4
    CHUNK = 5
    REFUSED = 6


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
    """An item's content as it is announced: *size* bytes, *rows* x *width* elements of *dtype*, row by row."""

    crc: int
    size: int
    rows: int
    width: int
    dtype: str

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
    """Whether *item* is there."""

    tag: int
    model: bytes
    item: str


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


Request = Probe | Fetch
Answer = Have | Miss | Chunk | Refused


def model_digest(model: str, hidden_size: int) -> bytes:
    """Return what both sides must agree on: the model's name and the width of its embeddings."""
    return hashlib.blake2b(f"{model}\0{hidden_size}".encode(errors="replace"), digest_size=16).digest()


def item_fits(item: str) -> bool:
    """Whether an item's name can travel: clients choose names (``multi_modal_uuids``)."""
    try:
        return 0 < len(item.encode()) <= ITEM_MAX
    except UnicodeEncodeError:  # lone surrogates
        return False


def encode(message: Request | Answer) -> bytes:
    """Return the frame of a message; of a chunk, its header."""
    match message:
        case Probe():
            body = _PROBE.pack(message.model) + message.item.encode()
            kind = Kind.PROBE
        case Fetch():
            body = _FETCH.pack(message.model, message.crc, message.offset, message.length)
            body += message.item.encode()
            kind = Kind.FETCH
        case Have(content=content):
            body = _HAVE.pack(message.model, content.crc, content.size, content.rows, content.width)
            body += content.dtype.encode()
            kind = Kind.HAVE
        case Miss():
            body = b""
            kind = Kind.MISS
        case Chunk():
            body = _CHUNK.pack(message.crc, message.offset, message.length)
            kind = Kind.CHUNK
        case Refused():
            body = _REFUSED.pack(message.reason) + message.text.encode(errors="replace")[:TEXT_MAX]
            kind = Kind.REFUSED
    return _PREFIX.pack(MAGIC, VERSION, kind, message.tag) + body


def decode_request(frame: bytes) -> Request:
    """Return a consumer's message.

    Raises:
        WireError: it is none.

    """
    kind, tag, rest = _open(frame)
    if kind == Kind.PROBE:
        (model,), item = _split(_PROBE, rest, tag)
        return Probe(tag, model, _item(item, tag))
    if kind == Kind.FETCH:
        (model, crc, offset, length), item = _split(_FETCH, rest, tag)
        if not 0 < length <= CHUNK_MAX:
            raise WireError(
                f"a chunk of {length} bytes is not between 1 and {CHUNK_MAX}", Reason.TOO_LARGE, tag
            )
        return Fetch(tag, model, crc, offset, length, _item(item, tag))
    raise WireError(f"kind {kind} is no request", tag=tag)


def decode_answer(frame: bytes) -> Answer:
    """Return a producer's message.

    Raises:
        WireError: it is none.

    """
    kind, tag, rest = _open(frame)
    if kind == Kind.HAVE:
        (model, crc, size, rows, width), dtype = _split(_HAVE, rest, tag)
        content = Content(crc, size, rows, width, _text(dtype, DTYPE_MAX, tag))
        if problem := content.problem():
            raise WireError(problem, tag=tag)
        return Have(tag, model, content)
    if kind == Kind.MISS:
        if rest:
            raise WireError(f"{len(rest)} bytes after a miss", tag=tag)
        return Miss(tag)
    if kind == Kind.CHUNK:
        (crc, offset, length), more = _split(_CHUNK, rest, tag)
        if more:
            raise WireError(f"{len(more)} bytes after a chunk's header", tag=tag)
        return Chunk(tag, crc, offset, length)
    if kind == Kind.REFUSED:
        (reason,), text = _split(_REFUSED, rest, tag)
        known = Reason(reason) if reason in Reason._value2member_map_ else Reason.MALFORMED
        return Refused(tag, known, _text(text, TEXT_MAX, tag))
    raise WireError(f"kind {kind} is no answer", tag=tag)


def _open(frame: bytes) -> tuple[int, int, bytes]:
    if len(frame) < _PREFIX.size:
        raise WireError(f"a frame of {len(frame)} bytes is too short")
    if len(frame) > HEADER_MAX:
        raise WireError(f"a frame of {len(frame)} bytes is too long", Reason.TOO_LARGE)
    magic, version, kind, tag = _PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise WireError("the frame does not begin with the protocol's magic bytes")
    if version != VERSION:
        raise WireError(f"version {version} of the protocol is not {VERSION}", Reason.VERSION, tag)
    return kind, tag, frame[_PREFIX.size :]


def _split(layout: struct.Struct, rest: bytes, tag: int) -> tuple[tuple[Any, ...], bytes]:
    if len(rest) < layout.size:
        raise WireError(f"a body of {len(rest)} bytes is too short", tag=tag)
    return layout.unpack_from(rest), rest[layout.size :]


def _item(rest: bytes, tag: int) -> str:
    if not rest:
        raise WireError("the item has no name", tag=tag)
    return _text(rest, ITEM_MAX, tag)


def _text(rest: bytes, longest: int, tag: int) -> str:
    if len(rest) > longest:
        raise WireError(f"a text of {len(rest)} bytes is longer than {longest}", tag=tag)
    try:
        return rest.decode()
    except UnicodeDecodeError:
        raise WireError("a text is not UTF-8", tag=tag) from None
