"""Fingerprints of items: a checksum of 16 bytes that takes a fifth of the time of a CRC-32.

A piece's is its GMAC (NIST SP 800-38D) with the piece's number as the nonce. The key is no secret, so it detects damage
and authenticates nothing. An item's is a hash of those of its pieces. ``cryptography`` computes them, which comes with vLLM
(by way of ``mcp``); without it there are none.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PIECE: Final = 512 << 10
"""Bytes of a piece: what was just copied is still in the processor's cache when its fingerprint is computed."""

SIZE: Final = 16

_KEY: Final = b"penstock-ec-item"
_NONCE_BYTES: Final = 12


def available() -> bool:
    """Whether there are fingerprints in this process."""
    return _cipher() is not None


def of_piece(number: int, piece: Any) -> bytes:
    """Return the fingerprint of an item's piece with that number, from 0; *piece* is bytes-like."""
    cipher = _cipher()
    if cipher is None:
        raise RuntimeError("cryptography is not installed")
    # GCM of nothing, with the piece as what goes in clear: all that comes out is the tag. It keeps the interpreter's lock
    # for some 20 µs; the interface that releases it takes longer than that (decision 50).
    return bytes(cipher.encrypt(number.to_bytes(_NONCE_BYTES, "big"), b"", piece))


def of_pieces(pieces: Iterable[bytes]) -> bytes:
    """Return the fingerprint of the item whose pieces have these, in their order."""
    return hashlib.blake2b(b"".join(pieces), digest_size=SIZE).digest()


def of_item(content: Any) -> bytes:
    """Return the fingerprint of an item; *content* is a buffer of its bytes."""
    starts = range(0, len(content), PIECE)
    return of_pieces(of_piece(number, content[at : at + PIECE]) for number, at in enumerate(starts))


@functools.cache
def _cipher() -> Any:
    """Return the cipher; None without the library, or with one that does not work here."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        cipher = AESGCM(_KEY)
        cipher.encrypt(bytes(_NONCE_BYTES), b"", b"")
    except Exception:  # noqa: BLE001  (a broken build of OpenSSL raises errors of its own kind)
        return None
    return cipher
