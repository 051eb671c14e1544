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
    encryptor = cipher(number.to_bytes(_NONCE_BYTES, "big"))
    encryptor.authenticate_additional_data(piece)
    encryptor.finalize()
    return bytes(encryptor.tag)


def of_pieces(pieces: Iterable[bytes]) -> bytes:
    """Return the fingerprint of the item whose pieces have these, in their order."""
    return hashlib.blake2b(b"".join(pieces), digest_size=SIZE).digest()


def of_item(content: Any) -> bytes:
    """Return the fingerprint of an item; *content* is a buffer of its bytes."""
    starts = range(0, len(content), PIECE)
    return of_pieces(of_piece(number, content[at : at + PIECE]) for number, at in enumerate(starts))


@functools.cache
def _cipher() -> Any:
    """Return what makes an encryptor for a nonce; None without the library, or with one that does not work here."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        key = algorithms.AES(_KEY)
        Cipher(key, modes.GCM(bytes(_NONCE_BYTES))).encryptor().finalize()
    except Exception:  # noqa: BLE001  (a broken build of OpenSSL raises errors of its own kind)
        return None
    return lambda nonce: Cipher(key, modes.GCM(nonce)).encryptor()
