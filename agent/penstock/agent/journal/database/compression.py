"""The bytes of a batch on disk: compressed if that saves space (four fifths of a usual batch), with a checksum either way."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

CHECKED: Final = 0
"""Stored as it came; its CRC-32 is in the bits above the lowest."""
ZSTD: Final = 1

# Below it the ids, which nothing shortens, are most of it.
_WORTH_IT = 512
# More is not unpacked: a bad disk's bytes may swell. An engine's message has half of it at most, what the agent itself
# writes about a lost engine can have more.
_MAX_BODY = 2 << 20
_FAST: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
# Its memory, whatever the bytes ask for: that of the largest body.
_NO_LARGER: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 21}


def pack(body: bytes) -> tuple[bytes, int]:
    """Return the bytes to store and the value of ``batches.packed``."""
    if _WORTH_IT <= len(body) <= _MAX_BODY:
        packed = zstd.compress(body, options=_FAST)
        if len(packed) < len(body):
            return packed, ZSTD
    return body, _checked(body)


def unpack(stored: bytes, packed: int) -> bytes:
    """Undo :func:`pack`; damaged bytes return empty, which no batch is."""
    if packed == ZSTD:
        try:
            return zstd.ZstdDecompressor(options=_NO_LARGER).decompress(stored, _MAX_BODY)
        except zstd.ZstdError:
            return b""
    return stored if packed == _checked(stored) else b""


def _checked(body: bytes) -> int:
    return zlib.crc32(body) << 1 | CHECKED
