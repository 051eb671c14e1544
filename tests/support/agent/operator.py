"""An operator in an incident: runs agentctl, gets the shipped alerts, and reads what they say. Sees nothing else."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.common.agent import CommandResult
from demo.common.steps import until
from tests.support.incidents.recording import take_bundle
from tests.support.incidents.table import INCIDENTS
from tests.support.prometheus.replay import Replay
from tests.support.prometheus.rules import RULES

if TYPE_CHECKING:
    from demo.common.agent import Agent
    from tests.support.prometheus.replay import Alert

_ROUNDED = 2.0  # seconds
_RUNBOOK = RULES.parents[1] / "docs" / "guides" / "runbook.md"


class Operator:
    """An operator who has agentctl, the alerts and the runbook, and no log."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self._agent = agent
        self._directory = directory
        self.alerts = Replay(agent.metrics)
        self._began = time.time()

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

    def diagnoses(self, kind: str, *words: str) -> dict[str, Any]:
        """Run ``agentctl diagnose`` about the time since the start until its first cause is *kind*; return that cause.

        Its sentence has all *words*.
        """
        found: dict[str, Any] = {}

        def look() -> dict[str, Any] | None:
            nonlocal found
            found = json.loads(self._agent.ctl("diagnose", "--since", self.since(), "-o", "json").output)
            first = (found.get("causes") or [{}])[0]
            fits = first.get("kind") == kind and all(word in first["sentence"] for word in words)
            return first if fits else None

        return until(look, lambda: f"agentctl diagnose does not say {kind} {words} first:\n{found}\n")

    def begins(self) -> None:
        """Let the time that is looked at begin now: what was before is what it is compared with.

        Commands take it in whole seconds, rounded up, which must not reach back to what was before.
        """
        time.sleep(_ROUNDED)
        self._began = time.time()

    def records(self, name: str) -> None:
        """Run ``agentctl diagnose`` until it says what the table has of incident *name*.

        Where ``$PENSTOCK_RECORD_INCIDENTS`` names a directory, the incident is then stored there.
        """
        incident, said = INCIDENTS[name], CommandResult("", 0, "")

        def look() -> bool:
            nonlocal said
            said = self._agent.ctl("diagnose", "--since", self.since(), "-o", "json")
            document = json.loads(said.output) if said.output.startswith("{") else {}
            kind = (document.get("causes") or [{}])[0].get("kind", "")
            return (kind, said.code) == (incident.kind, incident.code)

        until(look, lambda: f"agentctl diagnose does not say {incident.kind} first:\n{said}\n")
        directory = os.environ.get("PENSTOCK_RECORD_INCIDENTS")
        if directory:
            take_bundle(self._agent, Path(directory, incident.path.name).absolute(), began=self._began)

    def since(self) -> str:
        """Return how long ago it began, and up to :data:`_ROUNDED` more."""
        return f"{math.ceil(time.time() - self._began) + 1}s"

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
