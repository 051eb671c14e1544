"""Comparison with stored ratios: gross regressions only, in the direction that is bad for the row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.ratios import (
    Stored,
    better_of,
    found_in,
    load,
    middle_of,
    regressions,
    save,
    unmatched,
)
from benchmarks.harness.results import Row, Section, Spread, against

RATIO = st.floats(1e-6, 1e6)


@pytest.mark.parametrize(
    ("better", "found", "worse"),
    [
        ("lower", 0.99, False),
        ("lower", 1.0, False),
        ("lower", 1.01, True),
        ("lower", 0.001, False),
        ("higher", 0.26, False),
        ("higher", 0.25, False),
        ("higher", 0.24, True),
        ("higher", 90.0, False),
    ],
)
def test_worse_than_twice_the_stored_ratio(better, found, worse):
    """Stored is 0.5; twice itself still passes."""
    found_now = {"a": Stored(found, better)}
    assert bool(regressions({"a": Stored(0.5, better)}, found_now)) is worse


def test_the_worst_comes_first_and_says_what_it_is():
    """A sentence for the log of CI."""
    stored = {"a": Stored(1, "lower"), "b": Stored(1, "higher"), "c": Stored(1, "lower")}
    found = {"a": Stored(3, "lower"), "b": Stored(0.1, "higher"), "c": Stored(1, "lower")}
    assert [str(each) for each in regressions(stored, found)] == [
        "b: ratio 0.1, stored is 1 (higher is better): 10.0 times worse",
        "a: ratio 3, stored is 1 (lower is better): 3.0 times worse",
    ]


@given(RATIO, RATIO, st.sampled_from(["lower", "higher"]))
def test_the_better_of_two_runs_is_never_worse_than_either(first, second, better):
    """Whichever came first."""
    one, other = {"a": Stored(first, better)}, {"a": Stored(second, better)}
    merged = better_of(one, other)["a"]
    assert merged == better_of(other, one)["a"]
    assert max(one["a"].worse(merged.ratio), other["a"].worse(merged.ratio)) <= 1


def test_what_only_one_run_has_is_kept():
    """A failed try does not forget."""
    assert better_of({"a": Stored(1, "lower")}, {"b": Stored(2, "lower")}).keys() == {"a", "b"}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_what_is_stored_is_no_lucky_run(better):
    """The middle one of several; a row that one of them lacks is not stored."""
    runs = [{"a": Stored(ratio, better), "b": Stored(1, better)} for ratio in (9, 2, 3)]
    del runs[2]["b"]
    assert middle_of(runs) == {"a": Stored(3, better)}


def test_a_row_that_is_gone_or_new_is_named():
    """Else a renamed benchmark would never fail again."""
    assert unmatched({"a": Stored(1, "lower")}, {"b": Stored(1, "lower")}) == ["a", "b"]


def test_a_ratio_is_above_nothing():
    """A broken measurement does not pass."""
    with pytest.raises(ValueError, match="above 0"):
        Stored(1, "lower").worse(0)


def test_ratios_of_a_run_go_by_area_and_row():
    """Rows without a peer have none."""
    rows = (
        against("w", "ns", [1, 1], "p", [2, 2], group="g"),
        Row("memory", "MiB", Spread.one(80)),
    )
    assert found_in([Section("emit", "Emit", (), rows)]) == {"emit: g / w / p": Stored(0.5, "lower")}


def test_stored_ratios_come_back_from_the_file(tmp_path):
    """Three digits of them; before the first update there is nothing."""
    path = tmp_path / "ratios.json"
    assert load(path) == {}
    save(path, {"b": Stored(0.123456, "lower"), "a": Stored(2, "higher")})
    assert load(path) == {"a": Stored(2.0, "higher"), "b": Stored(0.123, "lower")}
