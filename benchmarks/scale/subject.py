"""An agent in an interpreter of its own, on clocks that can be set forward."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from benchmarks.load.shifted_agent import VARIABLE, ClockFile
from tests.support.agent.agent import AgentProcess, short_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MODULE: Final = "benchmarks.load.shifted_agent"
# The tests' agents are forks of a process that has imported all; one with an environment like this is started anew.
_OWN_INTERPRETER: Final = {"PYTHONUTF8": "1"}
# As installed: modules are not compiled at each start.
_COMPILED: Final = {"PYTHONDONTWRITEBYTECODE": ""}
_CLOCK: Final = "clock"


@dataclass(frozen=True, slots=True)
class Subject:
    """A running agent.

    Attributes:
        clock: its clocks.
        limit: bytes of its --state-limit.

    """

    agent: AgentProcess
    clock: ClockFile
    limit: int

    @classmethod
    @contextmanager
    def running(cls, limit: int) -> Iterator[Self]:
        """Run an agent in a temporary directory; it is killed at the end."""
        with short_directory() as directory:
            clock = ClockFile(directory / _CLOCK)
            subject = cls(_agent(directory, clock.path, limit), clock, limit)
            try:
                subject.agent.start()
                yield subject
            finally:
                subject.agent.kill()

    @contextmanager
    def twin(self) -> Iterator[AgentProcess]:
        """Make an agent, not started, that finds a copy of the state as a SIGKILL at this moment leaves it; it is killed at the end."""
        assert self.agent.process is not None
        with short_directory() as directory:
            other = _agent(directory, self.clock.path, self.limit)
            os.kill(self.agent.process.pid, signal.SIGSTOP)
            try:
                _copy(self.agent.state_dir, other.state_dir)
            finally:
                os.kill(self.agent.process.pid, signal.SIGCONT)
            try:
                yield other
            finally:
                other.kill()


def _agent(directory: Path, clock: Path, limit: int) -> AgentProcess:
    args = ["--log-level=warning", f"--state-limit={limit >> 20}MiB"]
    return AgentProcess(
        directory, args, {**_OWN_INTERPRETER, **_COMPILED, VARIABLE: str(clock)}, module=_MODULE
    )


def _copy(state: Path, target: Path) -> None:
    """Copy the files of a state directory, whose permissions the agent checks."""
    target.mkdir(mode=state.stat().st_mode & 0o777)
    for path in state.iterdir():
        if path.is_file():
            copy = target / path.name
            copy.touch(path.stat().st_mode & 0o777)
            copy.write_bytes(path.read_bytes())
