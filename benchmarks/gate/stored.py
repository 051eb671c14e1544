"""Stored counts, and what a count is beside the stored one.

Pure but for reading and writing the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOLERANCE: Final[Mapping[str, float]] = {
    "emit": 2.0,
    "encoding": 2.0,
    "ingest": 2.0,
    "scrape": 2.0,
    "step": 3.0,
}
"""Per cent above the stored count, by gate; three times what two runs differ by, or more."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored count.

    Attributes:
        instructions: of the whole job.
        run_on: the processors on which it came out, and the day of the first time.

    """

    instructions: int
    run_on: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate's count beside the one that it is compared with."""

    gate: str
    expected: int
    found: int

    @property
    def percent(self) -> float:
        """How much more it is; below zero for less."""
        return 100 * (self.found - self.expected) / self.expected

    @property
    def worse(self) -> bool:
        """Whether it is refused."""
        return self.percent > TOLERANCE[self.gate]

    @property
    def same(self) -> bool:
        """Whether it may be of the same code: where objects lie moves emit by 0.2 %, and a step's difference by 1 %."""
        return abs(self.percent) <= TOLERANCE[self.gate] / 2

    @property
    def better(self) -> bool:
        """Whether the stored count is out of date."""
        return self.percent < -TOLERANCE[self.gate]

    def __str__(self) -> str:
        """Return a line."""
        return (
            f"{self.gate}: {self.found:,} instructions, {self.percent:+.2f} % of {self.expected:,} "
            f"(at most +{TOLERANCE[self.gate]:g} %)"
        )


Store: TypeAlias = "dict[str, dict[str, Stored]]"
"""The stored counts by the name of a build, then by gate."""


def updated(
    stored: Mapping[str, Stored], found: Mapping[str, int], processor: str, day: str
) -> dict[str, Stored]:
    """Return *stored* with *found*: a count that is the same stays and has one more processor, any other is replaced."""
    after = dict(stored)
    for gate, instructions in found.items():
        known = stored.get(gate)
        if known is not None and Verdict(gate, known.instructions, instructions).same:
            after[gate] = replace(known, run_on={processor: day, **known.run_on})
        else:
            after[gate] = Stored(instructions, {processor: day})
    return after


def load(path: Path) -> Store:
    """Read the store; empty before the first update."""
    try:
        given = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {build: {gate: Stored(**each) for gate, each in gates.items()} for build, gates in given.items()}


def save(path: Path, store: Store) -> None:
    """Write the store, sorted."""
    lines = {build: {gate: asdict(each) for gate, each in gates.items()} for build, gates in store.items()}
    path.write_text(json.dumps(lines, indent=1, sort_keys=True) + "\n")
