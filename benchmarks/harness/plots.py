"""Draws what ``docs/benchmarks.md`` shows: how far each budget is used, and the ratios of an area to its peers."""

from __future__ import annotations

import io
import math
import textwrap
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final

from benchmarks.harness.results import FAILS, HOLDS, OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.harness.results import Row, Section, Spread

BUDGETS: Final = "budgets"
"""The name of the plot of all budgets; the others have that of their area."""
MOST: Final = 16
"""Rows in the plot of an area; the tables have all."""

_COLOURS: Final = {HOLDS: "#1a7f37", OPEN: "#9a6700", FAILS: "#cf222e"}
_BETTER, _WORSE, _UNDECIDED = "#0969da", "#cf222e", "#6e7781"
_INCHES, _INCHES_A_ROW, _INCHES_BESIDE = 9.5, 0.42, 0.9
_LABEL: Final = 58
_LABEL_LINES: Final = 2


def write(sections: Sequence[Section], directory: Path) -> None:
    """Write the plots of *sections* below *directory*: ``budgets.svg``, and ``AREA.svg`` where an area has ratios."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{BUDGETS}.svg").write_bytes(budgets(sections))
    for section in sections:
        if shown(section):
            (directory / f"{section.area}.svg").write_bytes(ratios(section))


def shown(section: Section) -> list[Row]:
    """Return the rows of an area's plot: those with a budget for their ratio, then one of each group by turns."""
    rows = [
        row
        for row in section.rows
        if row.ratio is not None
        and row.ratio.least > 0
        and (not section.plotted or any(each in row.what for each in section.plotted))
    ]
    first = [row for row in rows if row.budget is not None and row.budget.of == "ratio"]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row not in first:
            groups.setdefault(row.group, []).append(row)
    by_turns = (row for row in chain.from_iterable(zip_longest(*groups.values())) if row is not None)
    kept = [*first, *by_turns][:MOST]
    return [row for row in section.rows if row in kept]


def budgets(sections: Iterable[Section]) -> bytes:
    """Return an SVG: of each limit the share that is used, and the interval of the median."""
    lines = [
        (row.budget.name, *_share(row.budget.limit, _limited(row), at_most=row.budget.at_most), row.verdict)
        for section in sections
        for row in section.rows
        if row.budget is not None and row.budget.limit
    ]

    def draw(axes: Axes) -> None:
        for place, (_, share, least, most, verdict) in enumerate(lines):
            axes.barh(place, share, color=_COLOURS[verdict], height=0.6)
            axes.plot([least, most], [place, place], color="black", linewidth=1)
        axes.axvline(100, color="black", linewidth=1, linestyle="--")
        axes.set_xlabel("% of the limit (of a least value: limit ÷ value), with the 95 % interval")

    return _figure([name for name, *_ in lines], draw)


def ratios(section: Section) -> bytes:
    """Return an SVG: Penstock ÷ peer of the rows of :func:`shown`, on a logarithmic axis."""
    rows = shown(section)

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        for place, row in enumerate(rows):
            assert row.ratio is not None
            colour = _colour(row.ratio, higher_is_better=row.better == "higher")
            axes.plot([row.ratio.least, row.ratio.most], [place, place], color=colour, linewidth=2)
            axes.plot([row.ratio.median], [place], marker="o", color=colour)
        axes.axvline(1, color="black", linewidth=1, linestyle="--")
        for formatted in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatted(lambda value, _: f"{value:.3g}")
        if _decades(rows) > 1:
            axes.xaxis.set_minor_formatter(lambda _, __: "")
        axes.set_xlabel(
            "Penstock ÷ peer, with the 95 % interval\nblue: better, red: worse, grey: not decided"
        )

    return _figure([_label(row) for row in rows], draw)


def _label(row: Row) -> str:
    named = f"{row.what} ({row.group})" if row.group else row.what
    return f"{named} ÷ {row.peer}"


def _limited(row: Row) -> Spread:
    assert row.budget is not None
    found = row.value if row.budget.of == "value" else row.ratio
    assert found is not None
    return found


def _share(limit: float, found: Spread, *, at_most: bool) -> tuple[float, float, float]:
    """Return what of a limit is used, in per cent: the median and its interval."""
    shares = (each / limit if at_most else limit / each for each in (found.median, found.least, found.most))
    median, least, most = (100 * each for each in shares)
    return median, min(least, most), max(least, most)


def _colour(ratio: Spread, *, higher_is_better: bool) -> str:
    if ratio.least <= 1 <= ratio.most:
        return _UNDECIDED
    return _BETTER if (ratio.least > 1) == higher_is_better else _WORSE


def _decades(rows: Sequence[Row]) -> float:
    found = [row.ratio for row in rows if row.ratio is not None]
    return math.log10(max(each.most for each in found) / min(each.least for each in found))


def _wrapped(label: str) -> str:
    return "\n".join(textwrap.wrap(label, _LABEL, max_lines=_LABEL_LINES, placeholder=" …"))


def _figure(labels: Sequence[str], draw: Callable[[Axes], None]) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The same numbers make the same file.
    with rc_context({"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 9.0}):
        figure = Figure((_INCHES, _INCHES_BESIDE + _INCHES_A_ROW * len(labels)), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_yticks(range(len(labels)), [_wrapped(each) for each in labels])
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x", linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        found = io.BytesIO()
        figure.savefig(found, format="svg", metadata={"Date": None})
    return found.getvalue()
