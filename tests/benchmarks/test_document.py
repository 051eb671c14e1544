"""The document is a function of the results; a part that is run again replaces its own section only."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.harness.document import (
    IMAGES,
    PAGE,
    TABLES,
    Results,
    anchor,
    number,
    ratios_of,
    spread,
    terminal,
)
from benchmarks.harness.plots import BUDGETS, MOST, shown
from benchmarks.harness.results import Budget, Row, Section, Spread, against

ORDER = ("emit", "agent")
EMIT = Section(
    "emit",
    "Emit path",
    ("What it costs.",),
    (
        against(
            "a sample", "ns", [100, 200, 300], "Counter.inc", [200, 400, 600], budget=Budget("emit", 250)
        ),
        against("an event", "ns", [900, 900], "span", [9000, 9000], group="Beside"),
    ),
    {"Measured": "today", "on": "a machine"},
    "What a thread pays.",
)
AGENT = Section("agent", "The agent", (), (Row("memory", "MiB", Spread.one(80.25)),))


def test_the_page_has_of_each_area_what_it_means_a_plot_and_budgets():
    """Golden: first what does not hold or is not decided; an area without ratios has no plot, one without a meaning no sentence."""
    text = Results([AGENT, EMIT]).page(ORDER)
    assert text[text.index("## Budgets") :] == (
        "## Budgets\n\n"
        "![Of each limit the share that is used](images/benchmarks/budgets.svg)\n\n"
        "1 of 1 in [Emit path](#emit-path) are not decided. All others hold.\n\n"
        "## Emit path\n\n"
        "What a thread pays.\n\n"
        "![Emit path: Penstock ÷ peer](images/benchmarks/emit.svg)\n\n"
        "| budget | limit | measured | verdict |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| emit | ≤ 250 ns | 200 ns (100 to 300) | not decided |\n\n"
        "<sub>Measured today; on a machine</sub>\n\n"
        "## The agent\n"
    )


def test_the_tree_keeps_ratios_and_budgets():
    """The page and its plots are the same from them: the peers' numbers and rows of neither kind are the run's."""
    rows = [
        against(f"row {number}", "ns", [1, 2, 3], "peer", [3, 3, 3], group="many")
        for number in range(MOST + 5)
    ]
    rows.append(against("limited", "ns", [1, 2, 3], "peer", [3, 3, 3], group="many", budget=Budget("b", 250)))
    section = replace(EMIT, rows=(*EMIT.rows, *rows, Row("memory", "MiB", Spread.one(3))))
    kept = ratios_of(section)
    assert [row.key for row in shown(kept)] == [row.key for row in shown(section)]
    assert {row.verdict for row in kept.rows} == {row.verdict for row in section.rows}
    assert Results([kept]).page(ORDER) == Results([section]).page(ORDER)
    assert (len(kept.rows), len(kept.notes)) == (MOST + 1, 0)
    assert not [
        row for row in kept.rows if row.theirs is not None or (row.budget is None and row.value is not None)
    ]


def test_the_tables_have_all_rows_and_circumstances():
    """Golden: empty columns are left out."""
    text = Results([AGENT, EMIT]).tables(ORDER)
    assert text[text.index("## Emit path") :] == (
        "## Emit path\n\n"
        "What it costs.\n\n"
        "| what | Penstock | peer | the peer's | Penstock ÷ peer | budget | verdict |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| a sample | 200 ns [150 250] | Counter.inc | 400 ns [300 500] | 0.5 | ≤ 250 ns | not decided |\n\n"
        "### Beside\n\n"
        "| what | Penstock | peer | the peer's | Penstock ÷ peer |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| an event | 900 ns | span | 9,000 ns | 0.1 |\n\n"
        "<sub>Measured today; on a machine</sub>\n\n"
        "## The agent\n\n"
        "| what | Penstock |\n"
        "| --- | ---: |\n"
        "| memory | 80.2 MiB |\n"
    )


def test_a_section_replaces_its_own_only(tmp_path):
    """Over the file, as two runs of the command do it."""
    path = tmp_path / "results.json"
    first = Results.load(path)
    first.replace(EMIT)
    first.replace(AGENT)
    first.save(path)
    second = Results.load(path)
    second.replace(Section("agent", "The agent", (), (Row("memory", "MiB", Spread.one(99)),)))
    second.save(path)
    before, after = first.tables(ORDER), Results.load(path).tables(ORDER)
    assert "80.2 MiB" in before
    assert before.replace("80.2 MiB", "99.0 MiB") == after


def test_an_area_that_is_gone_leaves_the_document():
    """Its results may still be in the file."""
    text = Results([EMIT, AGENT]).tables(("agent",))
    assert ("## The agent" in text, "Emit path" in text) == (True, False)


def test_the_stored_ratios_make_the_page():
    """The page equals their rendering, each plot that it shows is there, and all areas have been measured."""
    from benchmarks.__main__ import AREAS, DOCS, RATIOS

    stored = Results.load(RATIOS)
    assert [section.area for section in stored.sections(AREAS)] == list(AREAS)
    assert (DOCS / PAGE).read_text() == stored.page(AREAS)
    plotted = {path.stem for path in (DOCS / IMAGES).iterdir()}
    assert plotted == {BUDGETS, *(each.area for each in stored.sections(AREAS) if shown(each))}


def test_what_a_run_writes_beside_its_ratios_is_in_no_version_control():
    """Tables and results are artefacts of a run."""
    from benchmarks.__main__ import RESULTS, RUNS

    ignored = ["git", "-C", str(Path(__file__).parent), "check-ignore", "--quiet"]
    for name in (RESULTS, TABLES):
        assert subprocess.run([*ignored, str(RUNS / name)], check=False).returncode == 0


def test_every_area_says_what_it_decides():
    """The page has a sentence for each."""
    from benchmarks.__main__ import AREAS

    for area in AREAS:
        module = import_module(f"benchmarks.areas.{area}")
        assert module.MEANING.endswith("."), area


def test_every_area_that_a_document_names_is_there():
    """As ``make bench ONLY=…``, by way of a line break, too."""
    from benchmarks.__main__ import AREAS

    root = Path(__file__).parents[2]
    documents = [root / "README.md", root / "benchmarks/README.md", *(root / "docs").rglob("*.md")]
    gone = root / "docs/decisions/0072-benchmarks-that-went.md"
    text = " ".join(path.read_text() for path in documents if path != gone)
    named = re.findall(r"make\s+bench(?:-quick)?\s+ONLY=(?:\"([^\"]*)\"|(\w+))", text)
    assert named
    assert {area for several, one in named for area in (several or one).split()} <= set(AREAS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00412, "0.00412"),
        (0.9934, "0.993"),
        (1.0004, "1.000"),
        (12.345, "12.3"),
        (123456.7, "123,457"),
    ],
)
def test_numbers_have_the_digits_that_count(value, text):
    """Three or more."""
    assert number(value) == text


def test_a_spread_is_shown_where_there_is_one():
    """And its unit stands by the median."""
    assert spread(Spread.one(2.0), "ms") == "2.000 ms"
    assert spread(Spread(2.0, 1.5, 3.0, 1, 4)) == "2.000 [1.500 3.000]"
    assert spread(None) == ""


def test_a_ratio_says_where_its_median_lies():
    """In its table and in that of the budgets."""
    values = [90, 95, 100, 100, 100, 105, 110]
    row = against(
        "rate",
        "/s",
        values,
        "without",
        [100] * 7,
        budget=Budget("rate", 0.8, of="ratio", at_most=False),
        better="higher",
    )
    results = Results([Section("emit", "Emit path", (), (row,))])
    assert "| 1.000 [0.975 1.025] | 0.9 to 1.100 | ratio ≥ 0.8 | holds |" in results.tables(ORDER)
    budgeted = "| rate | ratio ≥ 0.8 | 1.000 (0.9 to 1.100) | holds |"
    assert budgeted in results.page(ORDER)


def test_anchors_are_githubs():
    """As links of the budgets need them."""
    assert anchor("Prefill → decode, over NIXL") == "prefill--decode-over-nixl"


def test_the_terminal_shows_a_row_a_line():
    """With its whole name."""
    assert terminal(EMIT).splitlines()[1] == "Beside / an event / span: 900 ns; span; 9,000 ns; 0.1"


def test_a_budget_without_a_limit_is_in_the_table():
    """It is shown, and no verdict on it."""
    row = Row("state", "bytes an entry", Spread.one(50), budget=Budget("bytes of state", None))
    text = Results([Section("emit", "Emit path", (), (row,))]).page(ORDER)
    assert "| bytes of state |  | 50.0 bytes an entry | shown |" in text


def test_results_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """An interrupted run leaves those of the run before."""
    path = tmp_path / "results.json"
    Results([EMIT]).save(path)
    before = path.read_text()
    monkeypatch.setattr(Path, "replace", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        Results([EMIT, AGENT]).save(path)
    assert path.read_text() == before


def _interrupted(*_):
    raise KeyboardInterrupt
