"""Durations and sizes as text: ``30s``, ``5m``, ``1h30m``, ``500ms``; ``512MiB``, ``1.5TiB``. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|[dhms])")
DURATION_PATTERN = rf"(?:{_PART.pattern})+"
_WHOLE = re.compile(DURATION_PATTERN)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(MiB|GiB|TiB)")
_MIB = 1 << 20
_SIZE_UNITS = {"MiB": _MIB, "GiB": _MIB << 10, "TiB": _MIB << 20}
# What the wire's integers hold.
_MOST_BYTES = 1 << 62


def parse_duration(text: str) -> timedelta:
    """Parse ``1h30m``; units are d, h, m, s and ms, and a part may have decimals.

    Raises:
        ValueError: the text is not a duration; the sentence names it.

    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 1h30m")
    try:
        return sum((_UNITS[unit] * float(amount) for amount, unit in _PART.findall(text)), timedelta())
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration can be") from None


def format_duration(value: timedelta) -> str:
    """Format in the canonical form, to the millisecond: ``1h30m``, ``0s``; it parses back to the same."""
    rest = round(value / _UNITS["ms"])
    parts = []
    for unit in ("h", "m", "s", "ms"):
        amount, rest = divmod(rest, _UNITS[unit] // _UNITS["ms"])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str, least: int = _MIB) -> int:
    """Return bytes.

    Raises:
        ValueError: it is no size, or less than *least* bytes.

    """
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * _SIZE_UNITS[match[2]]) if match is not None else 0
    if not least <= size <= _MOST_BYTES:
        raise ValueError(f"expected {least // _MIB}MiB or more, a number with MiB, GiB or TiB, like 1GiB")
    return size


def format_size(size: float) -> str:
    """Return bytes for a person: ``3.4 MiB``, ``12 KiB``."""
    if size >= _MIB:
        return f"{size / _MIB:.1f} MiB"
    return f"{size / 1024:.0f} KiB"
