"""Drives a switching server (:mod:`benchmarks.in_engine.server`) and turns its records into rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from benchmarks.harness.results import against
from benchmarks.in_engine.schedule import BLOCK_NS, Note, block_at, blocks, compared, controls
from benchmarks.load.traffic import Load, drive, run_under_load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.harness.results import Better, Budget, Row
    from benchmarks.in_engine.schedule import Comparison, Work
    from benchmarks.load.traffic import Route

MODULE: Final = "benchmarks.in_engine.server"
PEER: Final = "the same engine without"
NOISE: Final = "without, again"
_DIRECTORY: Final = "BENCHMARK_SWITCH"
_GO: Final = "go"
_SETTLE: Final = 3 * BLOCK_NS / 1e9
_ONE: Final = Load("one request", 1, 1, 16, 2)


@dataclass(frozen=True, slots=True)
class Switched:
    """Comparisons of a switching server: with against without, and without against without."""

    pairs: Sequence[Comparison]
    noise: Sequence[Comparison]

    @classmethod
    def of(cls, notes: Sequence[Note]) -> Switched:
        """Return what *notes* come to.

        Raises:
            RuntimeError: there is nothing to compare: the server was never busy for long enough.

        """
        found = blocks(notes)
        pairs, noise = compared(found), controls(found)
        if not pairs or not noise:
            raise RuntimeError(
                f"The server was busy in {len(found)} of {len(notes) // 2} blocks only; that is no comparison."
            )
        return cls(pairs, noise)

    @classmethod
    def sum(cls, several: Sequence[Switched]) -> Switched:
        """Return the comparisons of *several* together."""
        return cls(
            [pair for each in several for pair in each.pairs],
            [pair for each in several for pair in each.noise],
        )


class Switching:
    """The switch of one server."""

    def __init__(self, directory: Path) -> None:
        """Create *directory* for the server's records."""
        self._directory = directory
        directory.mkdir(parents=True)

    @property
    def env(self) -> dict[str, str]:
        """The server's environment variables."""
        return {_DIRECTORY: str(self._directory)}

    def watched(self, route: Route, load: Load, seconds: float) -> Switched:
        """Switch for *seconds* under a load and return the comparisons; Penstock is on afterwards."""
        go = self._directory / _GO
        during = [0, 0]

        def work() -> None:
            time.sleep(_SETTLE)
            go.touch()
            during[0] = block_at(time.monotonic_ns()) + 1
            try:
                time.sleep(seconds)
            finally:
                during[1] = block_at(time.monotonic_ns())
                go.unlink()
            time.sleep(_SETTLE)

        run_under_load(route, load, work)
        first, end = during
        return Switched.of([note for note in self._notes() if first <= note.block < end])

    def told(self, route: Route) -> int:
        """Return the number of finished requests that the engine has reported, this one's probe included."""
        time.sleep(_SETTLE)
        drive(route, _ONE, seed=0)
        return 1 + max(note.told for note in self._notes())

    def _notes(self) -> list[Note]:
        files = sorted(self._directory.glob("*.jsonl"))
        return [note for file in files for note in Note.parse(file.read_text().splitlines(keepends=True))]


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of a table."""

    what: str
    unit: str
    of: Callable[[Work], float]
    better: Better = "lower"


THROUGHPUT: Final = Measure("throughput", "tokens/s", lambda work: work.throughput, "higher")
CPU: Final = Measure("CPU of all processes", "µs/token", lambda work: work.cpu)
MAIN: Final = Measure("CPU of the engine's main thread", "µs/step", lambda work: work.main)


def tables(found: Mapping[str, Mapping[str, Switched]], budgets: Mapping[str, Budget]) -> list[Row]:
    """Return the tables of servers that switched, by name and load: of all loads of one, which the budgets are about, then of each."""
    every: list[Row] = []
    single: list[Row] = []
    for name, loads in found.items():
        group = f"By turns in one engine: {name}"
        together = rows(Switched.sum(list(loads.values())), name, group, budgets.get(name))
        # The values of several loads are not of one kind.
        every += [replace(each, unit="", value=None, theirs=None) for each in together]
        for load, one in loads.items():
            single += rows(one, name, f"{group}, {load}")
    return [*every, *single]


def rows(found: Switched, name: str, group: str, budget: Budget | None = None) -> list[Row]:
    """Return the table of *name* against the same engine without, and of the noise; *budget* is the throughput's."""
    return [
        row(pairs, measure, who, group, budget if who == name and measure is THROUGHPUT else None)
        for measure in (THROUGHPUT, CPU, MAIN)
        for who, pairs in ((name, found.pairs), (NOISE, found.noise))
    ]


def row(
    pairs: Sequence[Comparison], measure: Measure, name: str, group: str = "", budget: Budget | None = None
) -> Row:
    """Return one line."""
    mine = [measure.of(pair.mine) for pair in pairs]
    other = [measure.of(pair.other) for pair in pairs]
    return against(
        f"{measure.what}, {name}",
        measure.unit,
        mine,
        PEER,
        other,
        group=group,
        better=measure.better,
        budget=budget,
    )
