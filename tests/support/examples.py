"""How many examples a property is tried on: a part of them in ``make test``, all in ``make test-long`` and ``make properties``."""

from __future__ import annotations

from hypothesis import settings

_ALL = {"long", "fresh"}
_PART = 6


def examples(number: int, part: int = _PART) -> int:
    """Return *number* where all are tried, else a sixth of it, or one *part* of so many."""
    return number if settings.get_current_profile_name() in _ALL else -(-number // part)
