"""Draws each answer over each variable, with its bound."""

from __future__ import annotations

import io
from itertools import cycle
from typing import TYPE_CHECKING, Final

from benchmarks.scale.answers import ANSWERS
from benchmarks.scale.variables import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.harness.results import Row, Section
    from benchmarks.scale.answers import Answer

_INCHES: Final = (9.5, 2.8)
_COLOURS: Final = ("#0969da", "#9a6700")
_BOUND: Final = "#cf222e"


def write(sections: Sequence[Section], directory: Path) -> None:
    """Write ``scale-ANSWER.svg`` of all answers below *directory*."""
    for answer in ANSWERS:
        (directory / f"scale-{answer.name}.svg").write_bytes(drawn(answer, sections))


def drawn(answer: Answer, sections: Sequence[Section]) -> bytes:
    """Return an SVG with a panel for each variable; both axes are logarithmic."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The same numbers make the same file.
    with rc_context({"svg.hashsalt": "scale", "svg.fonttype": "none", "font.size": 9.0}):
        figure = Figure(_INCHES, layout="constrained")
        panels = figure.subplots(1, len(sections), sharey=True, squeeze=False)[0]
        for axes, section in zip(panels, sections, strict=True):
            _panel(axes, answer, section)
        panels[0].set_ylabel(f"{answer.title.replace('`', '')}, {answer.unit}")
        if len(answer.rows) > 1:
            panels[0].legend(fontsize=7)
        found = io.BytesIO()
        figure.savefig(found, format="svg", metadata={"Date": None})
    return found.getvalue()


def _panel(axes: Axes, answer: Answer, section: Section) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for what, colour in zip(answer.rows, cycle(_COLOURS), strict=False):
        rows = [row for row in section.rows if row.what == what]
        axes.plot(
            [_at(row) for row in rows], [_median(row) for row in rows], marker="o", color=colour, label=what
        )
    axes.axhline(answer.bound, color=_BOUND, linewidth=1, linestyle="--")
    axes.set_xticks(ticks := sorted({_at(row) for row in section.rows}), [f"{at:,}" for at in ticks])
    axes.xaxis.set_minor_formatter(lambda _, __: "")
    axes.set_xlabel(VARIABLES[section.area].unit)
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _at(row: Row) -> int:
    return int(row.group)


def _median(row: Row) -> float:
    assert row.value is not None
    return row.value.median
