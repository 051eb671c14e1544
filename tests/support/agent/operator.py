"""An operator in an incident: runs agentctl, gets the shipped alerts, and reads what they say. Sees nothing else."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from demo.common.steps import until
from tests.support.prometheus.replay import RULES, Replay

if TYPE_CHECKING:
    from pathlib import Path

    from demo.common.agent import Agent
    from tests.support.prometheus.replay import Alert

_RUNBOOK = RULES.parents[1] / "docs" / "guides" / "runbook.md"


class Operator:
    """An operator who has agentctl, the alerts and the runbook, and no log."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self._agent = agent
        self._directory = directory
        self.alerts = Replay(agent.metrics)

    def runs(self, command: str) -> str:
        """Run an agentctl command, as typed without its first word, and return what it prints; it must succeed."""
        ran = self._agent.ctl(*shlex.split(command))
        assert ran.code == 0, f"{ran.line}: {ran.output}"
        return ran.output

    def reads(self, command: str, *words: str) -> str:
        """Run a command until its output has all *words*; return the first line with all of them, its white space folded.

        The agent may get to know what happened a moment later.
        """
        said = ""

        def look() -> str:
            nonlocal said
            said = self._agent.ctl(*shlex.split(command)).output
            lines = (" ".join(line.split()) for line in said.splitlines())
            return next((line for line in lines if all(word in line for word in words)), "")

        return until(look, lambda: f"agentctl {command} has no line with {words}:\n{said}\n")

    def rows(self, command: str) -> list[dict[str, str]]:
        """Run a command that prints a table; return its rows by header."""
        header, *lines = self.runs(command).splitlines()
        names = header.split()
        starts = [header.index(f"{name}") for name in names]
        ends = [*starts[1:], None]
        return [
            {name: line[start:end].strip() for name, start, end in zip(names, starts, ends, strict=True)}
            for line in lines
        ]

    def alert(self, name: str) -> Alert:
        """Return the one alert of a *name* that fires at the last scrape; the runbook has a section about it."""
        firing = self.alerts.firing(self._directory)
        found = [alert for alert in firing if alert.name == name]
        assert len(found) == 1, [alert.words for alert in firing]
        assert f"### {name}\n" in _RUNBOOK.read_text()
        return found[0]

    def follows(self, alert: Alert) -> str:
        """Run the command that an alert names, and return what it prints."""
        return self.runs(alert.annotations["run"].removeprefix("agentctl "))
