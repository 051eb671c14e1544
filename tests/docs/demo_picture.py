"""The README's picture of ``make demo``: drawn from what the demo printed.

``make demo | tee demo.txt; python -m tests.docs.demo_picture demo.txt`` draws it again. Of the demo's steps the picture has
the last three, each with one command; lines that are too long for it end with ``…``.
"""

from __future__ import annotations

import re
import sys
from html import escape, unescape
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"
CUT = "…"
_COLUMNS = 128
_LINE, _COLUMN, _MARGIN = 19, 7.85, 18
_STYLE = (
    "text { font: 13px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre; fill: #d0d7de } "
    ".h { fill: #79c0ff; font-weight: bold } .c { fill: #ffffff; font-weight: bold }"
)
_HEADING, _PROMPT = "━━━ ", "$ "
# Of a heading, and of the lines that only say how far the demo is.
_CLOCK = re.compile(r"^\[ *\d+ s\] ")
# Labels that are the same in all lines.
_SAME = re.compile(r'(?:channel|connector|direction|engine|rehearsal|server)="[^"]*",?')
_AUTHOR = re.compile(r"by \S+@\S+\)")
_LEFT_OUT = {"(b)": ("$ agentctl explain", "$ agentctl trace"), "(d)": ("$ agentctl explain",)}
_COLOURS = (
    (re.compile(r"HTTP 5\d\d|ERROR"), "#ff7b72"),
    (re.compile(r"HTTP 200"), "#7ee787"),
    (re.compile(r"\w+=(?:&quot;)?(?:failed|recomputed|handshake|refused|recompute)(?:&quot;)?"), "#ffb454"),
)


def chosen(printed: str) -> list[str]:
    """Return the lines of the picture."""
    lines: list[str] = []
    step, skipping = "", False
    for raw in printed.partition("\nDone;")[0].splitlines():
        line = _CLOCK.sub("", raw)
        if line != raw and not line.startswith(_HEADING):
            continue
        if line.startswith(_HEADING):
            step, skipping = line.removeprefix(_HEADING)[:3], False
            if step != "(a)" and lines:
                lines.append("")
        elif line.startswith(_PROMPT):
            skipping = line.startswith(_LEFT_OUT.get(step, ()))
        if step in {"", "(a)"} or skipping or not line or line.startswith("The OTLP") or "linked to" in line:
            continue
        if re.fullmatch(r"[0-9a-f]{32}\.", line):
            continue
        lines.append(shortened(line))
    return lines


def shortened(line: str) -> str:
    """Return a line of the demo as the picture has it."""
    line = _CLOCK.sub("", line)
    if line.startswith("  penstock_"):
        line = _SAME.sub("", line).replace(",}", "}")
    line = _AUTHOR.sub("by ada@ops)", line)
    return line if len(line) <= _COLUMNS else line[: _COLUMNS - 1] + CUT


def drawn(lines: list[str]) -> str:
    """Return the picture."""
    width, height = int(_COLUMNS * _COLUMN + 2 * _MARGIN), len(lines) * _LINE + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#0d1117"/>',
    ]
    for number, line in enumerate(lines, 1):
        if line:
            kind = (
                ' class="h"'
                if line.startswith(_HEADING)
                else ' class="c"'
                if line.startswith(_PROMPT)
                else ""
            )
            text = escape(line)
            for pattern, colour in () if kind else _COLOURS:
                text = pattern.sub(rf'<tspan fill="{colour}">\g<0></tspan>', text)
            y = _MARGIN + number * _LINE - 5
            parts.append(f'<text x="{_MARGIN}" y="{y}" xml:space="preserve"{kind}>{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def shown() -> list[str]:
    """Return the lines that the stored picture shows."""
    texts = re.findall(r"<text [^>]*>(.*)</text>", PICTURE.read_text())
    return [unescape(re.sub(r"</?tspan[^>]*>", "", text)) for text in texts]


if __name__ == "__main__":
    PICTURE.write_text(drawn(chosen(Path(sys.argv[1]).read_text())))
