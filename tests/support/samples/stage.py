"""A real agent with two stand-in engines to which a story has happened, and a shell to type commands into."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.instrumentation.hooks import registry
from penstock.instrumentation.telemetry import snapshots

from tests.support.agent.agent import running_agent
from tests.support.samples.stand_in_engine import StandInEngine
from tests.support.samples.stories import BAD, REQUEST, STORIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.agent import AgentProcess

ROOT = Path(__file__).parents[3]
AUTHOR = "ada@ops"
_PLACEHOLDERS = {"ENGINE": "0", "OTHER": "1", "REQUEST": REQUEST, "REQUEST_ID": REQUEST, "PEER": BAD}
_READ_ONLY = {
    "get",
    "describe",
    "explain",
    "trace",
    "doctor",
    "top",
    "watch",
    "diff",
    "export",
    "curl",
    "what-if",
    "recommend",
    "bill",
}
_SNAPSHOT_INTERVAL = 0.05
_PROGRESS = re.compile(r"engine \S+ waiting")
_ANSWER = re.compile(r"engine \S+ acknowledged")
_SECONDS = 120
_FACTS = {
    "model": "tiny",
    "vllm_version": "0.32.0",
    "kv_connector": "NixlConnector",
    "kv_role": "kv_consumer",
    "tensor_parallel_size": 1,
    "data_parallel_size": 2,
    "block_size": 16,
}


class Stage:
    """What :func:`stage` yields."""

    def __init__(self, agent: AgentProcess, engines: list[StandInEngine], directory: Path) -> None:
        self._agent, self._engines, self._directory = agent, engines, directory

    def settle(self) -> None:
        """Wait until the agent knows what the engines know."""
        for engine in self._engines:
            engine.settle()

    def run(self, command: str) -> list[str]:
        """Run a command line as a person would type it beside the agent; returns the lines that it prints."""
        words = shlex.split(command, comments=True)
        if words[0] == "agentctl" and not set("|<>;&$") & set("".join(words)):
            arguments = [_PLACEHOLDERS.get(word, word) for word in words[1:]]
            with (
                mock.patch.dict(os.environ, self._environment()),
                mock.patch("socket.gethostname", return_value=AUTHOR.partition("@")[2]),
            ):
                output = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
        else:
            output = self._shell(command)
        if not _READ_ONLY & set(words[:2]):
            self.settle()
        return _in_order([self._as_shown(line.rstrip()) for line in output.rstrip().splitlines()])

    def _shell(self, command: str) -> str:
        """Run *command* in a shell; its output. Libraries print warnings of their own beside it."""
        for place, real in self._places().items():
            command = command.replace(place, real)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, **self._environment(), "PATH": path},
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {
            "AGENTCTL_ADDRESS": self._agent.admin,
            "PENSTOCK_ENDPOINT": self._agent.listen,
            "LOGNAME": AUTHOR.partition("@")[0],
            "PYTHONWARNINGS": "ignore",
            "NO_COLOR": "1",
            "TZ": "UTC",
        }

    def _places(self) -> dict[str, str]:
        """Return the addresses and paths that documents show, and those of this agent."""
        return {
            "unix:///run/penstock/ingest.sock": self._agent.listen,
            "unix:///run/penstock/admin.sock": self._agent.admin,
            "127.0.0.1:9464": self._agent.http,
            "/var/lib/penstock": str(self._agent.state_dir),
            "/run/penstock": str(self._agent.directory),
        }

    def _as_shown(self, line: str) -> str:
        for place, real in self._places().items():
            line = line.replace(real, place)
        return line


def _in_order(lines: list[str]) -> list[str]:
    """Return lines without the progress of a wait, and what engines answer by engine: the first to answer is chance."""
    kept = [line for line in lines if not _PROGRESS.fullmatch(line)]
    answers = [number for number, line in enumerate(kept) if _ANSWER.match(line)]
    for number, line in zip(answers, sorted(kept[number] for number in answers), strict=True):
        kept[number] = line
    return kept


@contextmanager
def stage(story: str, directory: Path) -> Iterator[Stage]:
    """Run an agent and two decode engines; *story* has happened to engine 0."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(snapshots, "SNAPSHOT_INTERVAL", _SNAPSHOT_INTERVAL))
        # Snapshots have the hooks of this process, which other tests install and uninstall.
        stack.enter_context(mock.patch.dict(registry._states, clear=True))
        agent = stack.enter_context(running_agent())
        engines = []
        for name in ("0", "1"):
            environment = {
                "PENSTOCK_ENDPOINT": agent.listen,
                "PENSTOCK_LABELS": "role=decode",
                "PENSTOCK_ALLOW_FAULTS": "1",
            }
            engine = StandInEngine(environment, name, **_FACTS)
            stack.callback(engine.stop)
            engines.append(engine.start())
        ready = Stage(agent, engines, directory)
        ready.settle()
        STORIES[story](engines[0], ready.run)
        ready.settle()
        yield ready
