"""How a batch lies on disk: compressed where that helps, which is three quarters of the bytes of a usual one."""

from __future__ import annotations

import zlib

# Below it the ids, which nothing shortens, are most of it.
_WORTH_IT = 512
# More is not unpacked: a bad disk's bytes may swell. An engine's message has half of it at most, what the agent itself
# writes about a lost engine can have more.
_MAX_BODY = 2 << 20
_FASTEST = 1


def pack(body: bytes) -> tuple[bytes, bool]:
    """Return what to store, and whether it is compressed."""
    if not _WORTH_IT <= len(body) <= _MAX_BODY:
        return body, False
    packed = zlib.compress(body, _FASTEST)
    return (packed, True) if len(packed) < len(body) else (body, False)


def unpack(stored: bytes, packed: int) -> bytes:
    """Undo :func:`pack`. What a bad disk has spoilt comes back as it lies there: it is no batch either way."""
    if not packed:
        return stored
    try:
        return zlib.decompressobj().decompress(stored, _MAX_BODY)
    except zlib.error:
        return stored
