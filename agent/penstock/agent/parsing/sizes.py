"""Sizes: ``512MiB``, ``1GiB``, ``1.5TiB``. Pure."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)(MiB|GiB|TiB)")
_MIB = 1 << 20
_BYTES = {"MiB": _MIB, "GiB": _MIB << 10, "TiB": _MIB << 20}
# What the wire's integers hold.
_MOST = 1 << 62


def parse_size(text: str, least: int = _MIB) -> int:
    """Return bytes.

    Raises:
        ValueError: it is no size, or less than *least* bytes.

    """
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * _BYTES[match[2]]) if match is not None else 0
    if not least <= size <= _MOST:
        raise ValueError(f"expected {least // _MIB}MiB or more, a number with MiB, GiB or TiB, like 1GiB")
    return size


def format_size(size: float) -> str:
    """Return bytes for a person: ``3.4 MiB``, ``12 KiB``."""
    if size >= _MIB:
        return f"{size / _MIB:.1f} MiB"
    return f"{size / 1024:.0f} KiB"
