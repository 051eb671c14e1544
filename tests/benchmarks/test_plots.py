"""A plot has the rows that its area chooses, their labels and a mark of what is better; the same numbers make the same file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.plots import MOST, budgets, ratios, shown
from benchmarks.harness.results import Budget, Row, Section, Spread, against

if TYPE_CHECKING:
    from benchmarks.harness.results import Better


def _row(what: str, group: str = "", budget: Budget | None = None, ratio: float = 0.5) -> Row:
    return against(what, "ns", [ratio, 1.2 * ratio], "a peer", [1.0, 1.0], group=group, budget=budget)


def test_an_area_shows_budgets_first_then_its_groups_by_turns() -> None:
    """In the order of the tables."""
    limited = _row("limited", "last", Budget("of its ratio", 1.0, of="ratio"))
    rows = [_row(f"{number}", group) for group in ("first", "second") for number in range(MOST)]
    names = [(row.group, row.what) for row in shown(Section("an", "An area", (), [*rows, limited]))]
    assert names == [
        *(("first", f"{number}") for number in range(MOST // 2)),
        *(("second", f"{number}") for number in range(MOST // 2 - 1)),
        ("last", "limited"),
    ]


def test_an_area_shows_what_it_names() -> None:
    """And no row without a ratio."""
    rows = [_row("throughput"), _row("memory"), Row("throughput alone", "/s", Spread.one(3))]
    section = Section("an", "An area", (), rows, plotted=("throughput",))
    assert [row.what for row in shown(section)] == ["throughput"]
    assert shown(replace(section, rows=rows[2:])) == []


@pytest.mark.parametrize(
    ("ratio", "better", "colour"),
    [
        (0.5, "lower", "#0969da"),
        (2.0, "lower", "#cf222e"),
        (2.0, "higher", "#0969da"),
        (0.9, "lower", "#6e7781"),
    ],
)
def test_a_ratio_is_better_worse_or_not_decided(ratio: float, better: Better, colour: str) -> None:
    """Not decided is what lies on both sides of 1."""
    row = replace(_row("a sample", ratio=ratio), better=better)
    drawn = ratios(Section("an", "An area", (), [row])).decode()
    assert colour in drawn
    assert sum(each in drawn for each in ("#0969da", "#cf222e", "#6e7781")) == 1
    assert "a sample ÷ a peer" in drawn


def test_a_plot_of_budgets_has_a_bar_for_each_limit() -> None:
    """A budget that is only shown has none; the file is the same each time."""
    rows = [_row("a", budget=Budget("the first", 1.0)), _row("b", budget=Budget("the second", None))]
    section = Section("an", "An area", (), rows)
    drawn = budgets([section])
    assert drawn == budgets([section])
    assert b"the first" in drawn
    assert b"the second" not in drawn
