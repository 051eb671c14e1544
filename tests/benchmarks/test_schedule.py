"""What the notes of an engine that switches come to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.in_engine.client import CPU, NOISE, THROUGHPUT, Switched, rows, tables
from benchmarks.in_engine.schedule import (
    BLOCK_NS,
    Note,
    Work,
    block_at,
    blocks,
    compared,
    controls,
    end_of,
    is_with,
)

EIGHT = 8
NUMBERS = st.floats(-1, 1)


def note(number: int, process: str = "engine", **changes) -> Note:
    """Return what a process noted in a block like all others: 1,000 tokens, half a core each."""
    fields = {"on": is_with(number), "wall_ns": BLOCK_NS, "cpu_ns": BLOCK_NS // 2, "main_ns": BLOCK_NS // 4}
    if process == "engine":
        fields |= {"steps": 100, "tokens": 1_000}
    return Note(process, number, **{**fields, **changes})


def both(number: int, **changes) -> list[Note]:
    """Return the notes of both processes; *changes* are the engine's."""
    return [note(number, **changes), note(number, "api")]


def test_a_block_is_a_stretch_of_the_clock():
    """The next one begins where it ends."""
    block = block_at(17 * BLOCK_NS + 5)
    assert (block, block_at(end_of(block) - 1), block_at(end_of(block))) == (17, 17, 18)


def test_an_eight_has_as_much_of_either():
    """And begins and ends with different ones, so that neither is always first."""
    kinds = [is_with(number) for number in range(EIGHT)]
    assert sum(kinds) == EIGHT // 2
    assert kinds == [is_with(number + EIGHT) for number in range(EIGHT)]
    assert kinds[0] != kinds[-1]


def test_notes_survive_the_file():
    """A line that is still being written is left out."""
    lines = [note(3).line(), note(3, "api").line(), note(4).line()[:-5]]
    assert Note.parse(lines) == [note(3), note(3, "api")]


def test_a_block_is_what_both_processes_did():
    """The API process's share of a core, for as long as the engine's block was."""
    engine, api = both(8, wall_ns=BLOCK_NS * 5 // 4)
    (work,) = blocks([engine, api]).values()
    assert work.cpu_ns == pytest.approx(BLOCK_NS // 2 * (1 + 5 / 4))
    assert work.throughput == pytest.approx(1_000 / (BLOCK_NS * 5 / 4) * 1e9)
    assert work.main == pytest.approx(BLOCK_NS / 4 / 100 / 1e3)


@pytest.mark.parametrize(
    "changes",
    [{"tokens": 0}, {"wall_ns": 3 * BLOCK_NS}, {"wall_ns": BLOCK_NS // 5}, {"on": not is_with(8)}],
    ids=["idle", "a pause", "a start", "not yet switched"],
)
def test_what_is_no_block_is_left_out(changes):
    """And so is one that only one process has noted."""
    assert blocks(both(8, **changes)) == {}
    assert blocks([note(8)]) == {}


def test_only_whole_eights_are_compared():
    """A block that is missing takes its eight along, and no other; the noise needs the blocks without of two that follow each other."""
    notes = [each for number in range(3, 4 * EIGHT) if number != 19 for each in both(number)]
    found = blocks(notes)
    assert len(compared(found)) == 2
    assert not is_with(17)
    assert len(controls(found)) == 1  # 19 is not one of its blocks
    assert len(controls({number: work for number, work in found.items() if number != 17})) == 0
    assert len(controls({**found, **dict.fromkeys(range(EIGHT), found[8])})) == 2


@given(NUMBERS, NUMBERS, NUMBERS, st.floats(0.9, 1.1))
def test_drifts_cancel_out(constant, slope, bend, effect):
    """A machine that gets slower, steadily or more and more, is no effect, and does not hide one."""

    def slow(number: int) -> Work:
        at = number / EIGHT
        wall = BLOCK_NS * (100 + constant + slope * at + bend * at * at)
        return Work(1_000, 100, wall * (effect if is_with(number) else 1), BLOCK_NS, BLOCK_NS)

    (pair,) = compared({number: slow(number) for number in range(EIGHT)})
    assert pair.other.throughput / pair.mine.throughput == pytest.approx(effect, rel=1e-9)
    (noise,) = controls({number: slow(number) for number in range(2 * EIGHT)})
    assert noise.other.throughput / noise.mine.throughput == pytest.approx(1, rel=2e-3)


def test_the_tables():
    """With Penstock everything takes a tenth longer; the noise is none."""
    notes = []
    for number in range(4 * EIGHT):
        engine, api = both(number)
        if engine.on:
            engine = note(number, tokens=900)
        notes += [engine, api]
    found = Switched.of(notes)
    table = {row.what: row for row in rows(found, "Penstock", "a load")}
    ratios: dict[str, Any] = {what: row.ratio for what, row in table.items()}
    assert ratios[f"{THROUGHPUT.what}, Penstock"].median == pytest.approx(0.9)
    assert ratios[f"{CPU.what}, Penstock"].median == pytest.approx(1 / 0.9)
    assert ratios[f"{THROUGHPUT.what}, {NOISE}"].median == 1
    every = tables({"Penstock": {"one": found, "two": found}}, {})
    assert [(row.group.rpartition(":")[2], row.value is None) for row in every[:: len(table)]] == [
        (" Penstock", True),
        (" Penstock, one", False),
        (" Penstock, two", False),
    ]


def test_nothing_to_compare_says_so():
    """An idle engine."""
    with pytest.raises(RuntimeError, match="busy in 0 of 8 blocks"):
        Switched.of([each for number in range(EIGHT) for each in both(number, tokens=0)])
