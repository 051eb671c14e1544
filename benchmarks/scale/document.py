"""The generated part of ``docs/scale.md``: the bounds, and how each answer grows."""

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
_CIRCUMSTANCES: Final = ("Measured", "on")
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
    columns = ["median, at", *(f"{_points(each)} {VARIABLES[each.area].unit}" for each in sections)]
    grown = [_growth(answer, what, sections) for answer in ANSWERS for what in answer.rows]
    bounds = table(_COLUMNS, [_bound(answer, sections) for answer in ANSWERS])
    return "\n".join([bounds, table(columns, grown), _notes(sections)])


def _bound(answer: Answer, sections: Sequence[Section]) -> list[str]:
    rows = [(section, row) for section in sections for row in section.rows if row.what in answer.rows]
    section, worst = max(rows, key=lambda each: _median(each[1]))
    verdict = max((answer.verdict(row) for _, row in rows), key=_SEVERITY.index)
    at = f"{int(worst.group):,} {VARIABLES[section.area].unit}"
    measured = f"{number(_median(worst))} {answer.unit}"
    return [answer.title, f"≤ {number(answer.bound)} {answer.unit}", measured, at, verdict]


def _notes(sections: Sequence[Section]) -> str:
    """Return what each variable means, and when and on which machines all was measured."""
    lines = []
    for section in sections:
        variable = VARIABLES[section.area]
        lines.append(_wrapped(f"{variable.note}.", f"- **{variable.unit}** "))
    told = []
    for name in _CIRCUMSTANCES:
        found = dict.fromkeys(each.circumstances.get(name, "") for each in sections)
        told.append(f"{name} {', '.join(filter(None, found))}")
    return "\n".join(lines) + f"\n\n{_wrapped('; '.join(told), '<sub>', '')}</sub>\n"


def _wrapped(text: str, mark: str, indent: str = "  ") -> str:
    return textwrap.fill(
        mark + text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _points(section: Section) -> str:
    return "/".join(f"{int(point):,}" for point in dict.fromkeys(row.group for row in section.rows))


def _growth(answer: Answer, what: str, sections: Sequence[Section]) -> list[str]:
    """Return a line of the table: of each variable the median at each point."""
    which = what.partition(", ")[2]
    name = f"{answer.title}{f', {which}' if which else ''}, {answer.unit}"
    return [
        name,
        *("/".join(number(_median(row)) for row in each.rows if row.what == what) for each in sections),
    ]


def _median(row: Row) -> float:
    assert row.value is not None
    return row.value.median
