"""Renders ``docs/benchmarks.md`` from the ratios that are stored, and a run's tables; a new run of an area replaces its section.

Pure, but for :class:`Results`.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from benchmarks.harness.plots import BUDGETS, shown
from benchmarks.harness.results import FAILS, OPEN, Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.harness.results import Budget, Row, Spread

PAGE: Final = "benchmarks.md"
TABLES: Final = "benchmarks-tables.md"
IMAGES: Final = "images/benchmarks"
"""The page and its pictures lie below ``docs``; the tables with the results of the runs, in no version control."""

_PAGE_HEAD: Final = """\
# Benchmarks

What Penstock costs, beside a named peer of the same run. Written by `make bench`, which leaves all
numbers, with load and versions, in `.cache/benchmarks`; [the method](../benchmarks/README.md).

*Penstock ÷ peer* is the ratio of the two, taken round by round while they took turns: below 1
Penstock costs less. In brackets: where the median lies with 95 %. *Not decided*: the limit is in
there.
"""
_TABLES_HEAD: Final = f"""\
# Benchmarks: all numbers

Written by `make bench` (`ONLY=emit` runs one area and replaces its section). What they mean:
`docs/{PAGE}`. The method: `benchmarks/README.md`.

Numbers compare only with the peer's of the same run: the two took turns, and the ratio
(Penstock ÷ peer) is taken round by round. Numbers are medians over the rounds, quartiles in
brackets; a p99 of all rounds has its 95 % interval, as far as the rounds suffice. *Median, 95 %*:
the 95 % interval of the median of that ratio.
"""
_WIDTH: Final = 100
_COLUMNS: Final = (
    "what",
    "Penstock",
    "peer",
    "the peer's",
    "Penstock ÷ peer",
    "median, 95 %",
    "budget",
    "verdict",
)
_BUDGET_COLUMNS: Final = ("budget", "limit", "measured", "verdict")
_SHOWN_CIRCUMSTANCES: Final = ("Measured", "on")


class Results:
    """The last section of each area."""

    def __init__(self, sections: Iterable[Section] = ()) -> None:
        self._sections = {section.area: section for section in sections}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote; empty before the first run."""
        try:
            text = path.read_text()
        except FileNotFoundError:
            return cls()
        return cls(Section.from_json(each) for each in json.loads(text))

    def save(self, path: Path) -> None:
        """Write it atomically, a row a line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text("[\n" + ",\n".join(_lines(each) for each in self._sections.values()) + "\n]\n")
        new.replace(path)

    def replace(self, section: Section) -> None:
        """Replace the section of its area."""
        self._sections[section.area] = section

    def sections(self, order: Sequence[str]) -> list[Section]:
        """Return those of the areas in *order*; others are omitted."""
        return [self._sections[area] for area in order if area in self._sections]

    def page(self, order: Sequence[str]) -> str:
        """Return the page that a person reads: of each area what it means, a plot of its ratios and its budgets."""
        sections = self.sections(order)
        return _joined([_PAGE_HEAD, _verdicts(sections), *(_summary(each) for each in sections)])

    def tables(self, order: Sequence[str]) -> str:
        """Return the tables of all numbers."""
        return _joined([_TABLES_HEAD, *(_section(each) for each in self.sections(order))])


def ratios_of(section: Section) -> Section:
    """Return what the page shows of a section: rows with a budget or in the plot, without the peers' own numbers."""
    drawn = shown(section)
    rows = [
        replace(
            row,
            value=row.value.rounded if row.value is not None and _limits(row, "value") else None,
            theirs=None,
            ratio=row.ratio.rounded
            if row.ratio is not None and (row in drawn or _limits(row, "ratio"))
            else None,
        )
        for row in section.rows
        if row.budget is not None or row in drawn
    ]
    return replace(section, notes=(), rows=rows)


def _limits(row: Row, what: str) -> bool:
    return row.budget is not None and row.budget.of == what


def _lines(section: Section) -> str:
    """Return a section as JSON with a row a line, so that a run changes the lines of what it measured."""
    given = section.as_json()
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in given.pop("rows"))
    rest = ",\n".join(f' "{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in given.items())
    return f'{{\n{rest},\n "rows": [\n{rows}\n ]\n}}'


def number(value: float) -> str:
    """Return a number with three significant digits, from 100 on with all of its integer digits."""
    if abs(value) >= 100:  # noqa: PLR2004
        return f"{value:,.0f}"
    if abs(value) >= 10:  # noqa: PLR2004
        return f"{value:.1f}"
    return f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"


def spread(found: Spread | None, unit: str = "") -> str:
    """Return the median with its unit, and the quartiles if they differ."""
    if found is None:
        return ""
    text = f"{number(found.median)} {unit}".rstrip()
    return f"{text} [{number(found.low)} {number(found.high)}]" if found.varies else text


def interval(found: Spread | None) -> str:
    """Return the 95 % interval of the median; empty without a spread."""
    return f"{number(found.least)} to {number(found.most)}" if found is not None and found.varies else ""


def limit(budget: Budget | None, unit: str) -> str:
    """Return a budget's limit."""
    if budget is None or budget.limit is None:
        return ""
    sign = "≤" if budget.at_most else "≥"
    return (
        f"{sign} {number(budget.limit)} {unit}" if budget.of == "value" else f"ratio {sign} {budget.limit:g}"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def terminal(section: Section) -> str:
    """Return the rows as text for a terminal."""
    return "\n".join(f"{row.key}: {'; '.join(filter(None, _cells(row)[1:]))}" for row in section.rows)


def _cells(row: Row) -> list[str]:
    return [
        row.what,
        spread(row.value, row.unit),
        row.peer,
        spread(row.theirs, row.unit),
        spread(row.ratio),
        interval(row.ratio),
        limit(row.budget, row.unit),
        row.verdict,
    ]


def _verdicts(sections: Iterable[Section]) -> str:
    """Return the plot of all budgets, and how many of which section do not hold or are not decided; empty without a budget."""
    limited = [(each, [row.verdict for row in each.rows if row.budget is not None]) for each in sections]
    if not any(verdicts for _, verdicts in limited):
        return ""
    said = []
    for verdict, words in ((FAILS, "do not hold"), (OPEN, "are not decided")):
        where = [
            f"{verdicts.count(verdict)} of {len(verdicts)} in [{each.title}](#{anchor(each.title)})"
            for each, verdicts in limited
            if verdict in verdicts
        ]
        said += [f"{', '.join(where)} {words}."] if where else []
    picture = f"![Of each limit the share that is used]({IMAGES}/{BUDGETS}.svg)"
    return f"## Budgets\n\n{picture}\n\n{_wrap(' '.join([*said, 'All others hold.']))}\n"


def _budgets(section: Section) -> str:
    lines = []
    for row in section.rows:
        if row.budget is not None:
            limited, unit = (row.value, row.unit) if row.budget.of == "value" else (row.ratio, "")
            measured = f"{number(limited.median)} {unit}".rstrip() if limited is not None else ""
            if within := interval(limited):
                measured += f" ({within})"
            lines.append((row.budget.name, limit(row.budget, row.unit), measured, row.verdict))
    return table(_BUDGET_COLUMNS, lines) if lines else ""


def _summary(section: Section) -> str:
    parts = [f"## {section.title}\n"]
    if section.meaning:
        parts.append(f"{_wrap(section.meaning)}\n")
    if shown(section):
        parts.append(f"![{section.title}: Penstock ÷ peer]({IMAGES}/{section.area}.svg)\n")
    kept = {name: value for name, value in section.circumstances.items() if name in _SHOWN_CIRCUMSTANCES}
    return _joined([*parts, _budgets(section), _circumstances(kept)])


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _section(section: Section) -> str:
    parts = [f"## {section.title}\n", *(f"{_wrap(note)}\n" for note in section.notes)]
    for group, rows in _groups(section.rows).items():
        if group:
            parts.append(f"### {group}\n")
        # Columns that no row fills are left out.
        cells = [_cells(row) for row in rows]
        filled = [index for index in range(len(_COLUMNS)) if any(line[index] for line in cells)]
        columns = [_COLUMNS[index] for index in filled]
        parts.append(table(columns, [[line[index] for index in filled] for line in cells]))
    return _joined([*parts, _circumstances(section.circumstances)])


def _circumstances(given: Mapping[str, str]) -> str:
    said = "; ".join(f"{name} {value}" for name, value in given.items())
    return _wrap(f"<sub>{said}</sub>") + "\n" if said else ""


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _groups(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found
