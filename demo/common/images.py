"""Pictures of random noise, so that no two are equal."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from dataclasses import dataclass

from demo.common.vision_model import SIDE


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of random pixels; the same for the same *seed*.

    Attributes:
        alias: the client's identifier, which the server uses in place of a hash of the pixels; empty for none.

    """

    seed: str
    alias: str = ""

    @property
    def uri(self) -> str:
        """The picture as a PNG in a data URI."""
        pixels = random.Random(self.seed)
        # Each line of pixels begins with its filter: none.
        lines = b"".join(b"\0" + pixels.randbytes(SIDE * 3) for _ in range(SIDE))
        header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
        png = (
            b"\x89PNG\r\n\x1a\n"
            + _chunk(b"IHDR", header)
            + _chunk(b"IDAT", zlib.compress(lines))
            + _chunk(b"IEND", b"")
        )
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
