"""What errors of engines and agents say, as it is quoted to a person. Pure."""

from __future__ import annotations

import re
from typing import Final

# The mismatch of compatibility hashes of vLLM 0.32 ends so: blocks would then be read as what they are not.
_ADVICE: Final = re.compile(r"\s*Disable this check using\b.*", re.DOTALL)


def without_advice(text: str) -> str:
    """Return an error's *text* without vLLM's advice to switch its check of compatibility off."""
    return _ADVICE.sub("", text)


def in_one_line(text: str, most: int) -> str:
    """Return an error's *text* in one line of at most *most* characters, those that do not print escaped.

    What is longer loses its middle: the end says what to do.
    """
    kept = most // 2
    line = " ".join(text.split())
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return shown if len(shown) <= most else f"{shown[: kept - 3]} … {shown[kept - most :]}"
