"""The generated part of ``docs/scale.md``: the bounds, and a plot and a table of each answer."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from benchmarks.harness.document import number, table
from benchmarks.harness.results import FAILS, HOLDS, OPEN
from benchmarks.scale.answers import ANSWERS
from benchmarks.scale.variables import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness.results import Row, Section
    from benchmarks.scale.answers import Answer

BEGIN: Final = "<!-- From here on by: make scale -->"
END: Final = "<!-- Until here by: make scale -->"
_WIDTH: Final = 100
_COLUMNS: Final = ("answer", "bound", "worst measured", "at", "verdict")
# The worst of several rows.
_SEVERITY: Final = (HOLDS, OPEN, FAILS)


def inserted(document: str, sections: Sequence[Section]) -> str:
    """Return *document* with what lies between the two marks replaced.

    Raises:
        ValueError: it does not have them.

    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The document lacks {BEGIN!r} or, behind it, {END!r}.")
    return f"{before}{BEGIN}\n\n{generated(sections)}\n{END}{after}"


def generated(sections: Sequence[Section]) -> str:
    """Return what *sections* say."""
    parts = [table(_COLUMNS, [_bound(answer, sections) for answer in ANSWERS]), _notes(sections)]
    for answer in ANSWERS:
        picture = f"![{answer.title.replace('`', '')}, over each variable](images/scale-{answer.name}.svg)"
        parts += [f"### {answer.title}\n", f"{picture}\n", _points(answer, sections)]
    return "\n".join(parts)


def _bound(answer: Answer, sections: Sequence[Section]) -> list[str]:
    rows = [(section, row) for section in sections for row in section.rows if row.what in answer.rows]
    section, worst = max(rows, key=lambda each: _median(each[1]))
    verdict = max((answer.verdict(row) for _, row in rows), key=_SEVERITY.index)
    at = f"{int(worst.group):,} {VARIABLES[section.area].unit}"
    measured = f"{number(_median(worst))} {answer.unit}"
    return [answer.title, f"≤ {number(answer.bound)} {answer.unit}", measured, at, verdict]


def _notes(sections: Sequence[Section]) -> str:
    lines = []
    for section in sections:
        variable = VARIABLES[section.area]
        measured = "; ".join(f"{name} {value}" for name, value in section.circumstances.items())
        lines.append(_wrapped(f"{variable.note}. <sub>{measured}</sub>", f"- **{variable.unit}** "))
    return "\n".join(lines) + "\n"


def _wrapped(text: str, mark: str) -> str:
    return textwrap.fill(
        mark + text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _points(answer: Answer, sections: Sequence[Section]) -> str:
    """Return the table of an answer: of each variable, and each kind of request, the median at each point."""
    lines = []
    for section in sections:
        for what in answer.rows:
            rows = [row for row in section.rows if row.what == what]
            which = what.partition(", ")[2]
            name = f"{VARIABLES[section.area].unit}{f', {which}' if which else ''}"
            lines.append([name, *(f"{int(row.group):,}: {number(_median(row))}" for row in rows)])
    most = max(map(len, lines))
    columns = [f"median, {answer.unit}, at", *[""] * (most - 1)]
    return table(columns, [line + [""] * (most - len(line)) for line in lines])


def _median(row: Row) -> float:
    assert row.value is not None
    return row.value.median
