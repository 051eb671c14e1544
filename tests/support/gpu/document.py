"""The page that a run of ``make test-gpu`` writes: one row for each check, from what the run reported. Pure."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.gpu.machine import Machine

PASSED: Final = "passed"
NOT_RUN: Final = "not run"
MARK: Final = "<!-- below: written by make test-gpu -->\n"
"""What is above it on the page stays."""
_WIDTH: Final = 100
_REASON: Final = 300


@dataclass(slots=True)
class Check:
    """One test's result.

    Attributes:
        name: one sentence.
        result: passed, failed, skipped or not run.
        reason: why it was skipped, or how it failed.
        figures: what it measured.

    """

    name: str
    result: str = NOT_RUN
    reason: str = ""
    figures: list[str] = field(default_factory=list)

    def row(self) -> str:
        """Return its row of the table."""
        said = f"{self.result}: {self.reason}" if self.reason else self.result
        return f"| {_cell(self.name)} | {_cell(said)} | {_cell('; '.join(self.figures))} |"


def page(before: str, machine: Machine, checks: Iterable[Check], *, date: str, commit: str) -> str:
    """Return the page with the run's results in place of those of the page *before*.

    Raises:
        ValueError: that page has not the mark behind which results are.

    """
    head, mark, _ = before.partition(MARK)
    if not mark:
        raise ValueError(f"The page has no line {MARK.strip()}")
    return f"{head}{mark}\n{results(machine, checks, date=date, commit=commit)}"


def results(machine: Machine, checks: Iterable[Check], *, date: str, commit: str) -> str:
    """Return the part of the page that a run writes."""
    listed = list(checks)
    passed = sum(check.result == PASSED for check in listed)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(machine.versions.items()))
    said = (
        f"Run on {date} at commit {commit}: {passed} of {len(listed)} checks passed. "
        f"GPUs: {len(machine.gpus)} ({', '.join(dict.fromkeys(machine.gpus))}), driver {machine.driver}. "
        f"Versions: {versions}."
    )
    rows = [check.row() for check in listed]
    paragraph = textwrap.fill(said, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([paragraph, "", "| check | result | figures |", "|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    """Return text as it can stand in a cell: one line, not too long."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= _REASON else f"{line[:_REASON]}…"
