"""How the messages between a consumer and a producer (``messages.py``) are written. Pure."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

from penstock.instrumentation.vllm.zmq_ec.wire.messages import (
    CHUNK_MAX,
    DTYPE_BYTES,
    DTYPE_MAX,
    HEADER_MAX,
    ITEM_MAX,
    MAGIC,
    ROWS_MAX,
    SIZE_MAX,
    TEXT_MAX,
    VERSION,
    WIDTH_MAX,
    Answer,
    Area,
    Attach,
    Chunk,
    Content,
    Fetch,
    Have,
    Kind,
    Miss,
    Probe,
    Reason,
    Refused,
    Request,
    Taken,
    WireError,
)

__all__ = [
    "CHUNK_MAX",
    "DTYPE_BYTES",
    "DTYPE_MAX",
    "HEADER_MAX",
    "ITEM_MAX",
    "MAGIC",
    "ROWS_MAX",
    "SIZE_MAX",
    "TEXT_MAX",
    "VERSION",
    "WIDTH_MAX",
    "Answer",
    "Area",
    "Attach",
    "Chunk",
    "Content",
    "Fetch",
    "Have",
    "Kind",
    "Miss",
    "Probe",
    "Reason",
    "Refused",
    "Request",
    "Taken",
    "WireError",
    "decode_answer",
    "decode_request",
    "encode",
    "item_fits",
    "model_digest",
]

_PREFIX: Final = struct.Struct(">2sBBQ")
_PROBE: Final = struct.Struct(">16s")
_FETCH: Final = struct.Struct(">16sIQI")
_HAVE: Final = struct.Struct(">16sIQII")
_SEEN: Final = struct.Struct(">16s16sQII")
_CHUNK: Final = struct.Struct(">IQI")
_ATTACH: Final = struct.Struct(">16s16s")
_AREA: Final = struct.Struct(">IIQ16s")
_TAKEN: Final = struct.Struct(">16sQ")
_REFUSED: Final = struct.Struct(">B")


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
            kind = Kind.LOOK if message.fingerprint else Kind.PROBE
        case Fetch():
            body = _FETCH.pack(message.model, message.crc, message.offset, message.length)
            body += message.item.encode()
            kind = Kind.FETCH
        case Have():
            kind, body = _have(message)
        case Miss():
            body = b""
            kind = Kind.MISS
        case Chunk():
            body = _CHUNK.pack(message.crc, message.offset, message.length)
            kind = Kind.CHUNK
        case Refused():
            body = _REFUSED.pack(message.reason) + message.text.encode(errors="replace")[:TEXT_MAX]
            kind = Kind.REFUSED
        case Attach():
            body = _ATTACH.pack(message.model, message.place)
            kind = Kind.ATTACH
        case Area():
            body = _AREA.pack(message.pid, message.fd, message.capacity, message.token)
            kind = Kind.AREA
        case Taken():
            body = _TAKEN.pack(message.model, message.nanos) + message.item.encode()
            kind = Kind.TAKEN
    return _PREFIX.pack(MAGIC, VERSION, kind, message.tag) + body


def _have(message: Have) -> tuple[Kind, bytes]:
    content = message.content
    shape = (content.size, content.rows, content.width)
    if content.fingerprint:
        body = _SEEN.pack(message.model, content.fingerprint, *shape)
    else:
        body = _HAVE.pack(message.model, content.crc, *shape)
    return Kind.SEEN if content.fingerprint else Kind.HAVE, body + content.dtype.encode()


def decode_request(frame: bytes) -> Request:
    """Return a consumer's message.

    Raises:
        WireError: it is none.

    """
    kind, tag, rest = _open(frame)
    if kind in (Kind.PROBE, Kind.LOOK):
        (model,), item = _split(_PROBE, rest, tag)
        return Probe(tag, model, _item(item, tag), fingerprint=kind == Kind.LOOK)
    if kind == Kind.FETCH:
        (model, crc, offset, length), item = _split(_FETCH, rest, tag)
        if not 0 < length <= CHUNK_MAX:
            raise WireError(
                f"a chunk of {length} bytes is not between 1 and {CHUNK_MAX}", Reason.TOO_LARGE, tag
            )
        return Fetch(tag, model, crc, offset, length, _item(item, tag))
    if kind == Kind.ATTACH:
        model, place = _whole(_ATTACH, rest, tag)
        return Attach(tag, model, place)
    if kind == Kind.TAKEN:
        (model, nanos), item = _split(_TAKEN, rest, tag)
        return Taken(tag, model, nanos, _item(item, tag))
    raise WireError(f"kind {kind} is no request", tag=tag)


def decode_answer(frame: bytes) -> Answer:
    """Return a producer's message.

    Raises:
        WireError: it is none.

    """
    kind, tag, rest = _open(frame)
    if kind in (Kind.HAVE, Kind.SEEN):
        (model, checksum, size, rows, width), dtype = _split(_HAVE if kind == Kind.HAVE else _SEEN, rest, tag)
        make = Content if kind == Kind.HAVE else Content.of_fingerprint
        content = make(checksum, size, rows, width, _text(dtype, DTYPE_MAX, tag))
        if problem := content.problem():
            raise WireError(problem, tag=tag)
        return Have(tag, model, content)
    if kind == Kind.MISS:
        if rest:
            raise WireError(f"{len(rest)} bytes after a miss", tag=tag)
        return Miss(tag)
    if kind == Kind.CHUNK:
        crc, offset, length = _whole(_CHUNK, rest, tag)
        return Chunk(tag, crc, offset, length)
    if kind == Kind.REFUSED:
        (reason,), text = _split(_REFUSED, rest, tag)
        known = Reason(reason) if reason in Reason._value2member_map_ else Reason.MALFORMED
        return Refused(tag, known, _text(text, TEXT_MAX, tag))
    if kind == Kind.AREA:
        pid, fd, capacity, token = _whole(_AREA, rest, tag)
        return Area(tag, pid, fd, capacity, token)
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


def _whole(layout: struct.Struct, rest: bytes, tag: int) -> tuple[Any, ...]:
    found, more = _split(layout, rest, tag)
    if more:
        raise WireError(f"{len(more)} bytes after the message", tag=tag)
    return found


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
