"""Sentences that a program prints, found in its source: those that only a real engine or a full disk would show."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_SOURCES = ("agent", "instrumentation", "demo", "dashboards", "deploy/payload")
_ELLIPSIS = "…"
# Between two parts of one text that is written over several lines.
_JOINT = re.compile(r'"\s*\n\s*(?:# [^\n]*\n\s*)?f?"')
# A word that the source has as a value: {name}, '{name}', {name}s.
_VALUE = r"[^\s{]*\{[^{}]*\}[^\s{]*"


@functools.cache
def _source() -> str:
    """Return the programs' text, each sentence on one line."""
    paths = [
        path
        for root in _SOURCES
        for path in sorted((_ROOT / root).rglob("*"))
        if path.suffix in {".py", ".yml"}
    ]
    return "\n".join(_JOINT.sub("", path.read_text()) for path in paths if not path.stem.endswith("_pb2"))


def said(line: str) -> bool:
    """Tell whether the programs say *line*, with any values; ``…`` in it stands for what is left out.

    What stands before a colon may be said elsewhere than what stands behind it.
    """
    parts = [part.strip() for part in line.split(_ELLIPSIS) if part.strip()]
    return bool(parts) and all(_said(part) or all(map(_said, part.split(": "))) for part in parts)


def _said(part: str) -> bool:
    words = part.split()
    pattern = r"\s+".join(f"(?:{re.escape(word)}|{_VALUE})" for word in words)
    # Values alone match everything.
    return any(6 * match.group().count("{") <= 5 * len(words) for match in re.finditer(pattern, _source()))
