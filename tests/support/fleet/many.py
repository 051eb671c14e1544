"""Hundreds of agents and engines on one machine: real agents, several in a process, and engines that obey."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.support.agent.agent import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_START_SECONDS = 300.0
_AGENTS_OF_A_PROCESS = 25


class InForce(NamedTuple):
    """What an engine has: the hash, and since when by the monotonic clock."""

    hash: str
    since: float


class ManyAgents:
    """Agents named ``a000`` and so on, with engines of their own.

    Attributes:
        names: of the agents.
        in_force: of each (agent, engine).

    """

    def __init__(self, directory: Path, count: int, *flags: str, engines: int = 2) -> None:
        """Prepare *count* agents below *directory*, a short path, each with *flags* and so many engines."""
        self._directory = directory
        self._flags = flags
        self._engines = engines
        self.names = [f"a{number:03d}" for number in range(count)]
        self.in_force: dict[tuple[str, str], InForce] = {}
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def listed(self) -> str:
        """The agents as ``--agents`` of a relay takes them."""
        return ",".join(f"{name}=unix://{self._directory}/{name}/admin.sock" for name in self.names)

    def start(self) -> ManyAgents:
        """Start all, and wait until each engine has its first push."""
        parts = [
            self.names[first : first + _AGENTS_OF_A_PROCESS]
            for first in range(0, len(self.names), _AGENTS_OF_A_PROCESS)
        ]
        for names in parts:
            self._launch("agents", str(self._directory), ",".join(names), *self._flags)
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the agents do not start"
        for names in parts:
            addresses = [f"unix://{self._directory}/{name}/ingest.sock" for name in names]
            process = self._launch("engines", str(self._engines), *addresses)
            threading.Thread(target=self._read, args=(process, names), daemon=True).start()
        wait_until(self._connected, "all engines are connected", _START_SECONDS)
        return self

    def _connected(self) -> bool:
        assert all(process.poll() is None for process in self._processes), "one has ended"
        return len(self.in_force) == len(self.names) * self._engines

    def _launch(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.support.fleet.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def _read(self, process: subprocess.Popen[str], names: Sequence[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            agent, engine, found, since = line.split()
            self.in_force[names[int(agent)], engine] = InForce(found, float(since))

    def stop(self) -> None:
        """End all; engines first."""
        for process in reversed(self._processes):
            assert process.stdin is not None
            process.stdin.close()
        end = time.monotonic() + 120
        for process in self._processes:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.close()
        self._processes.clear()
