"""Comparison of a document's output with the real one.

What differs from run to run is replaced in both, the longest first:

| what | examples |
|---|---|
| moments | ``2026-11-20T12:00:00.000000000Z``, ``12:00:01`` |
| durations and ages | ``12s``, ``1.2ms``, ``5.9 s``, ``28m`` |
| sizes on this machine | ``1.2 GiB``, ``512 MiB`` |
| ids and hashes of eight hexadecimal digits or more | ``05b6026687b6`` |
| process ids | ``pid 4711`` |
| versions of Python | ``Python 3.11.2`` |
| the width of columns | runs of spaces count as two |

A line ``...`` stands for any number of lines. A sentence that is longer than a terminal is wide goes on in the next line,
behind four spaces.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ELISION = "..."
_REPLACED = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:\d\d)?"), "MOMENT"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "MOMENT"),
    (re.compile(r"\b\d+(\.\d+)? [KMGT]iB\b"), "SIZE"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"), "ID"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\bPython \d+\.\d+\.\d+"), "Python VERSION"),
    (re.compile(r"\b\d+(\.\d+)? ?(ns|µs|us|ms|s|m|h|d)\b"), "DURATION"),
    (re.compile(r" {2,}"), "  "),
)
_ALIKE = 0.5
_WIDTH = 100
_HANGING = " " * 4
_TABLE = re.compile(r"\S {2,}\S.* {2,}\S|[├└│]")


def normal(line: str) -> str:
    """Return a line with what varies replaced."""
    line = line.rstrip()
    for pattern, word in _REPLACED:
        line = pattern.sub(word, line)
    return line


def wrapped(line: str) -> list[str]:
    """Return a sentence in lines that a reader need not scroll; the row of a table as it is."""
    if len(line) <= _WIDTH or _TABLE.search(line):
        return [line]
    indent = _indent(line) + _HANGING
    return textwrap.wrap(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def unwrapped(lines: Sequence[str]) -> list[str]:
    """Return lines without the breaks that :func:`wrapped` makes."""
    found: list[str] = []
    before = ""
    for line in lines:
        word = line.strip().partition(" ")[0]
        if (
            found
            and _indent(line) == _indent(found[-1]) + _HANGING
            and len(before) <= _WIDTH < len(before) + 1 + len(word)
        ):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
        before = line
    return found


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def same(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Tell whether a document shows what was printed."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == ELISION else re.escape(normal(line)) + "\n"
        for line in unwrapped(shown)
    )
    return re.fullmatch(pattern, "".join(normal(line) + "\n" for line in printed)) is not None


def renewed(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return what was printed, with the lines left out that correspond to none of *shown*, if that leaves lines out."""
    shown = unwrapped(shown)
    if not any(line.strip() == ELISION for line in shown):
        return [part for line in printed for part in wrapped(line)]
    left = {number: normal(line) for number, line in enumerate(printed)}
    kept: set[int] = set()
    for line in shown:
        if line.strip() == ELISION:
            continue
        close = difflib.get_close_matches(normal(line), left.values(), n=1, cutoff=_ALIKE)
        if close:
            number = next(number for number, text in left.items() if text == close[0])
            kept.add(number)
            del left[number]
    lines: list[str] = []
    for number, line in enumerate(printed):
        if number in kept:
            lines += wrapped(line)
        elif not lines or lines[-1] != ELISION:
            lines.append(ELISION)
    return lines
