"""Durations as text: ``30s``, ``5m``, ``1h30m``, ``500ms``."""

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
