"""How a batch lies on disk: compressed where that helps, which is four fifths of the bytes of a usual one.

Either way with a checksum: what a bad disk has spoilt is to be told from a batch.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

PLAIN: Final = 0
ZLIB: Final = 1
"""What agents of journals before schema 4 wrote."""
ZSTD: Final = 2
CHECKED: Final = 3
"""As it came; its CRC-32 is in the bits above these two. An older agent, which does not know it, reads it as plain."""

_MANNER_BITS = 2
_MANNER = (1 << _MANNER_BITS) - 1

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
    """Return what to store, and how it lies there."""
    if _WORTH_IT <= len(body) <= _MAX_BODY:
        packed = zstd.compress(body, options=_FAST)
        if len(packed) < len(body):
            return packed, ZSTD
    return body, zlib.crc32(body) << _MANNER_BITS | CHECKED


def unpack(stored: bytes, packed: int) -> bytes:
    """Undo :func:`pack`; what a bad disk has spoilt comes back empty, as no batch is."""
    try:
        if packed == ZSTD:
            return zstd.ZstdDecompressor(options=_NO_LARGER).decompress(stored, _MAX_BODY)
        if packed == ZLIB:
            return zlib.decompressobj().decompress(stored, _MAX_BODY)
    except (zstd.ZstdError, zlib.error):
        return b""
    if packed & _MANNER == CHECKED and packed >> _MANNER_BITS != zlib.crc32(stored):
        return b""
    return stored
