"""What is asked of an agent: each answer with its bound, and how it is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from benchmarks.harness.results import Budget, Row, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.scale.subject import Subject
    from tests.support.agent.agent import AgentProcess

_MIB: Final = 1 << 20
_OK: Final = 200
_ROUNDS: Final = 3
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Answer:
    """One bound and a line of the table of growth for each of its rows.

    Attributes:
        name: in a word.
        title: what is measured, as a heading.
        rows: what its rows are named.
        bound: in *unit*, of all rows.

    """

    name: str
    title: str
    rows: tuple[str, ...]
    unit: str
    bound: float

    def verdict(self, row: Row) -> str:
        """Return whether the bound holds for one of its rows."""
        assert row.value is not None
        return Budget(self.title, self.bound).verdict(row.value)


ANSWERS: Final = (
    Answer("memory", "Resident memory", ("resident memory",), "MiB", 384),
    Answer("start", "Start-up until ready, after a SIGKILL", ("start-up",), "s", 10),
    Answer("scrape", "A scrape", ("scrape",), "s", 5),
    Answer("explain", "`agentctl explain`", ("explain, the oldest request", "explain, the newest request"), "s", 1),
    Answer("trace", "`agentctl trace`", ("trace, the oldest request", "trace, the newest request"), "s", 1),
    Answer("top", "A refresh of `agentctl top`", ("top",), "s", 2),
    Answer("disk", "Disk, of --state-limit", ("disk",), "%", 100),
)  # fmt: skip
"""In the order of the document."""


def measured(subject: Subject, asked: Sequence[str], group: str) -> list[Row]:
    """Ask an agent everything and return the rows of a *group*; it stands still for the moment of a copy of its state.

    Args:
        subject: with the state of this point.
        asked: ids of requests, the oldest first; those that the log has deleted are passed over.
        group: what the point is named.

    """
    agent, oldest, newest = subject.agent, oldest_kept(subject.agent, asked), asked[-1]
    found = {
        "resident memory": Spread.one(_resident(agent) / _MIB),
        "disk": Spread.one(100 * _disk(agent.state_dir) / subject.limit),
        "scrape": _spread(partial(_scrape, agent)),
        "explain, the oldest request": _spread(partial(_command, agent, "explain", oldest)),
        "explain, the newest request": _spread(partial(_command, agent, "explain", newest)),
        "trace, the oldest request": _spread(partial(_command, agent, "trace", oldest)),
        "trace, the newest request": _spread(partial(_command, agent, "trace", newest)),
        "top": _spread(partial(_command, agent, "top", "--plain", "--count", "1")),
    }
    with subject.twin() as other:
        found["start-up"] = _spread(partial(_start, other))
    return rows_of(found, group)


def rows_of(found: Mapping[str, Spread], group: str) -> list[Row]:
    """Return the rows of all answers in their order."""
    return [Row(what, answer.unit, found[what].rounded, group) for answer in ANSWERS for what in answer.rows]


def oldest_kept(agent: AgentProcess, asked: Sequence[str]) -> str:
    """Return the first id of *asked*, by age, that the log still has; it has the last."""
    low, high = 0, len(asked) - 1
    while low < high:
        middle = (low + high) // 2
        if _run(agent, "explain", asked[middle]):
            low = middle + 1
        else:
            high = middle
    return asked[low]


def _spread(measure: Callable[[], float]) -> Spread:
    return Spread.of([measure() for _ in range(_ROUNDS)])


def _resident(agent: AgentProcess) -> int:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def _disk(directory: Path) -> int:
    return sum(path.stat().st_blocks * _BLOCK for path in directory.rglob("*"))


def _scrape(agent: AgentProcess) -> float:
    began = time.monotonic()
    assert agent.get("/metrics")[0] == _OK
    return time.monotonic() - began


def _run(agent: AgentProcess, *command: str) -> str:
    """Run agentctl in this process; return what it said if it failed."""
    result = CliRunner().invoke(cli, ["--address", agent.admin, *command])
    return result.output if result.exit_code else ""


def _command(agent: AgentProcess, *command: str) -> float:
    began = time.monotonic()
    error = _run(agent, *command)
    took = time.monotonic() - began
    if error:
        raise RuntimeError(f"agentctl {' '.join(command)}: {error}")
    return took


def _start(agent: AgentProcess) -> float:
    """Return the seconds from a start until ready, after a SIGKILL to an earlier one."""
    agent.kill()
    began = time.monotonic()
    agent.start()
    return time.monotonic() - began
