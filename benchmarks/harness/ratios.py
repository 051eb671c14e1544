"""Stored ratios, and those of a run that are worse than twice the stored one: ``make bench-quick`` fails on them.

Ratios to peers of the same run, never times: a slow or busy machine is slow for both.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.harness.results import Section

FACTOR: Final = 2.0

# A peer that spends its time in the kernel: an interpreter that is slow today, on a busy or throttled processor, does not slow it down.
_NOT_COMPARED: Final = frozenset({"a DogStatsD datagram"})


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored ratio."""

    ratio: float
    better: str

    def worse(self, found: float) -> float:
        """Return how many times *found* is worse; below 1 it is better.

        Raises:
            ValueError: a ratio is not above 0.

        """
        if min(found, self.ratio) <= 0:
            raise ValueError(f"Ratios are above 0, not {found} and {self.ratio}.")
        return found / self.ratio if self.better == "lower" else self.ratio / found


@dataclass(frozen=True, slots=True)
class Regression:
    """A ratio that is worse than allowed."""

    key: str
    found: float
    stored: Stored
    times: float

    def __str__(self) -> str:
        """Return a sentence."""
        return (
            f"{self.key}: ratio {self.found:.3g}, stored is {self.stored.ratio:.3g} ({self.stored.better} is better): "
            f"{self.times:.1f} times worse"
        )


def found_in(sections: Iterable[Section]) -> dict[str, Stored]:
    """Return the ratios of a run by area and row, but for those to peers that a slow interpreter does not slow down."""
    return {
        f"{section.area}: {row.key}": Stored(row.ratio.median, row.better)
        for section in sections
        for row in section.rows
        if row.ratio is not None and row.peer not in _NOT_COMPARED
    }


def better_of(first: Mapping[str, Stored], second: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the better ratio of two runs for each key of either: noise makes ratios worse."""
    merged = dict(first)
    for key, found in second.items():
        known = merged.get(key)
        if known is None or known.worse(found.ratio) < 1:
            merged[key] = found
    return merged


def middle_of(runs: Sequence[Mapping[str, Stored]]) -> dict[str, Stored]:
    """Return the median ratio of the runs for each key that all have."""
    return {
        key: Stored(statistics.median(run[key].ratio for run in runs), first.better)
        for key, first in runs[0].items()
        if all(key in run for run in runs)
    }


def regressions(stored: Mapping[str, Stored], found: Mapping[str, Stored]) -> list[Regression]:
    """Return what is worse than ``FACTOR`` times its stored ratio, the worst first."""
    worse = [
        Regression(key, found[key].ratio, known, known.worse(found[key].ratio))
        for key, known in stored.items()
        if key in found
    ]
    return sorted((each for each in worse if each.times > FACTOR), key=lambda each: -each.times)


def unmatched(stored: Mapping[str, Stored], found: Mapping[str, Stored]) -> list[str]:
    """Return the keys that only one side has, such as those of a renamed benchmark."""
    return sorted(stored.keys() ^ found.keys())


def load(path: Path) -> dict[str, Stored]:
    """Read stored ratios; empty before the first update."""
    try:
        given = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {key: Stored(**each) for key, each in given.items()}


def save(path: Path, found: Mapping[str, Stored]) -> None:
    """Write *found* with three digits, so that diffs stay readable."""
    lines = {
        key: {"ratio": float(f"{each.ratio:.3g}"), "better": each.better}
        for key, each in sorted(found.items())
    }
    path.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
