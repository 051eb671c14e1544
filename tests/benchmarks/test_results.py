"""Rows: medians, intervals, ratios, verdicts."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.results import (
    FAILS,
    HOLDS,
    OPEN,
    SHOWN,
    Budget,
    Row,
    Section,
    Spread,
    against,
    ratios,
)

VALUES = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=200)


@given(VALUES)
def test_the_median_lies_between_the_quartiles_and_in_its_interval(values):
    """The interval never leaves what was measured."""
    spread = Spread.of(values)
    tolerance = 1e-9 * max(values)
    assert spread.low - tolerance <= spread.median <= spread.high + tolerance
    assert spread.least - tolerance <= spread.median <= spread.most + tolerance
    assert {spread.least, spread.most} <= set(values)


@pytest.mark.parametrize(
    ("rounds", "below"),
    [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (25, 7), (100, 39)],
    ids=str,
)
def test_the_interval_of_the_median_narrows_with_the_rounds(rounds, below):
    """Ranks as the tables for the median's 95 % interval have them, at most one further out."""
    spread = Spread.of(list(range(rounds)))
    assert (spread.least, spread.most) == (below, rounds - 1 - below)


def test_no_round_is_an_error():
    """A mistake of the benchmark, not a zero."""
    with pytest.raises(ValueError, match="one round"):
        Spread.of([])


@pytest.mark.parametrize(
    ("rounds", "percent", "least", "most"),
    [(100, 99, 96, math.inf), (300, 99, 292, math.inf), (400, 99, 391, 399), (1000, 99, 982, 996), (100, 50, 39, 60)],
    ids=str,
)  # fmt: skip
def test_the_interval_of_a_percentile_needs_rounds(rounds, percent, least, most):
    """Fewer than some four hundred say nothing of how high the 99th may be, whatever was seen."""
    found = Spread.percentile(list(range(rounds)), percent)
    assert (found.least, found.most) == (least, most)
    assert (found.low, found.high) == (least, min(most, rounds - 1))
    assert found.low <= found.median <= found.high


@given(VALUES, st.integers(1, 99))
def test_a_percentile_lies_in_its_interval(values, percent):
    """And what is shown was measured."""
    found = Spread.percentile(values, percent)
    tolerance = 1e-9 * max(values)
    assert found.least - tolerance <= found.median <= found.most + tolerance
    assert {found.low, found.high} <= set(values)


def test_few_rounds_do_not_decide_about_a_p99():
    """All of a hundred are below the limit, and one more may be above."""
    assert Budget("b", 50).verdict(Spread.percentile([1.0] * 100, 99)) == OPEN
    assert Budget("b", 50).verdict(Spread.percentile([1.0] * 400, 99)) == HOLDS
    with pytest.raises(ValueError, match="one round"):
        Spread.percentile([], 99)


def test_what_has_no_limit_is_shown():
    """DESIGN asks to see the bytes of an entry, and sets no budget."""
    assert Budget("b", None).verdict(Spread.one(50)) == SHOWN


def test_ratios_are_taken_round_by_round():
    """A round that was slow for both is as good as another."""
    assert ratios([1, 10, 100], [2, 20, 200]) == Spread(0.5, 0.5, 0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="zip"):
        ratios([1], [1, 2])


@pytest.mark.parametrize(
    ("at_most", "least", "most", "verdict"),
    [
        (True, 1, 2, HOLDS),
        (True, 2.5, 3, HOLDS),
        (True, 2.9, 3.1, OPEN),
        (True, 3.1, 4, FAILS),
        (False, 3, 4, HOLDS),
        (False, 2.9, 4, OPEN),
        (False, 1, 2.9, FAILS),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(at_most, least, most, verdict):
    """The limit itself is good."""
    spread = Spread(statistics.fmean((least, most)), least, most, least, most)
    assert Budget("b", 3, at_most=at_most).verdict(spread) == verdict


def test_a_budget_limits_the_value_or_the_ratio():
    """And a row that lacks it is a mistake."""
    value = Row("w", "ms", Spread.one(2), ratio=Spread.one(9), budget=Budget("b", 3))
    ratio = Row("w", "ms", Spread.one(2), ratio=Spread.one(9), budget=Budget("b", 3, of="ratio"))
    assert (value.verdict, ratio.verdict, Row("w", "ms", Spread.one(2)).verdict) == (HOLDS, FAILS, "")
    lacking = Row("w", "ms", None, ratio=Spread.one(9), budget=Budget("b", 3))
    with pytest.raises(ValueError, match="for its value, and has none"):
        _ = lacking.verdict


def test_a_section_is_the_same_after_json():
    """What an area's process answers is what is written."""
    rows = (
        against(
            "what", "ns", [1.0, 2, 3], "peer", [2.0, 2, 2], group="g", budget=Budget("b", 3), better="higher"
        ),
        Row("alone", "MiB", Spread.one(7)),
        Row("p99", "ms", Spread.percentile([1, 2], 99)),
        Row("ratio only", "", None, ratio=Spread(1, 0.5, 2, 0.5, 2), peer="peer"),
    )
    section = Section("area", "Title", ("note",), rows, {"on": "this"})
    again = Section.from_json(json.loads(json.dumps(section.as_json())))
    assert (tuple(again.rows), tuple(again.notes), again.circumstances) == (rows, ("note",), {"on": "this"})
    assert [row.key for row in again.rows] == ["g / what / peer", "alone", "p99", "ratio only / peer"]
