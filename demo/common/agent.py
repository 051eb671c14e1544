"""Runs a real penstock-agent, and agentctl against it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.common.client import fetch
from demo.common.metrics import Metrics
from demo.common.processes import Child, ChildError
from demo.common.progress import run_command, wait_for_others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGENTCTL = Path(sys.executable).with_name("agentctl")
_COLUMNS = 160
_HEALTH_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
# What agentctl says of the agent itself after 15 s; on a busy machine the next attempt may be in time.
_LATE = "the agent at {} did not answer in time"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished agentctl command.

    Attributes:
        line: the command line as typed.
        output: stdout and stderr.

    """

    line: str
    code: int
    output: str


class Agent:
    """One agent with its sockets, state and log in one directory.

    It may be stopped in any way and started again on the same state and sockets.
    """

    def __init__(
        self, directory: Path, *, otlp_endpoint: str = "", engines: int = 2, http: str = "127.0.0.1:0"
    ) -> None:
        self.directory = directory
        self.endpoint = f"unix://{directory}/ingest.sock"
        self.admin = f"unix://{directory}/admin.sock"
        self.http = ""
        self.page = ""
        self._otlp_endpoint = otlp_endpoint
        self._engines = engines
        self._http = http
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        """The running process.

        Raises:
            ChildError: it was not started, or was stopped.

        """
        if self._child is None:
            raise ChildError("The agent is not running; start it first.")
        return self._child

    def start(self, http: str = "") -> None:
        """Start it and wait until it is ready, its metrics at *http* where that is given.

        Raises:
            ChildError: it ended or was not ready in time.

        """
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_AGENT_")
        }
        if self._otlp_endpoint:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = self._otlp_endpoint
        command = [
            *(sys.executable, "-m", "penstock.agent"),
            *("--listen", self.endpoint, "--admin-listen", self.admin, "--http", http or self._http),
            *("--page", "127.0.0.1:0"),
            *("--state-dir", str(self.directory / "state"), "--engines-expected", str(self._engines)),
        ]
        self._child = Child(
            "agent", command, env=environment, cwd=self.directory, log=self.directory / "agent.log"
        )
        self._child.wait_until(self._ready, what="ready")

    def stop(self) -> None:
        """End it with SIGTERM, as Kubernetes does. Safe to call twice."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """End it as a crash would: ``kill -9``."""
        self.child.kill()
        self._child = None

    def metrics(self) -> Metrics:
        """Scrape it.

        Raises:
            OSError: the agent does not answer.

        """
        return Metrics.parse(fetch(f"http://{self.http}/metrics").text)

    def ctl(self, *arguments: str) -> CommandResult:
        """Run ``agentctl`` on its admin socket."""
        done = agentctl(self.admin, arguments, subprocess.STDOUT, columns=_COLUMNS)
        return CommandResult(typed(arguments), done.returncode, done.stdout.rstrip())

    def ctl_json(self, *arguments: str) -> Any:
        """Run ``agentctl … -o json`` and return the parsed output; what it says on stderr is none of it.

        Raises:
            ChildError: its exit code is not 0.

        """
        arguments = (*arguments, "-o", "json")
        done = agentctl(self.admin, arguments, subprocess.PIPE, columns=_COLUMNS)
        if done.returncode:
            raise ChildError(f"{typed(arguments)} exited with {done.returncode}: {done.stderr}{done.stdout}")
        return json.loads(done.stdout)

    def _ready(self) -> bool:
        addresses = _read_json(self.directory / "state" / "addresses.json")
        if addresses.get("pid") != self.child.pid:
            return False
        self.http, self.page = str(addresses["http"]), str(addresses.get("page", ""))
        try:
            return fetch(f"http://{self.http}/readyz", timeout=_HEALTH_SECONDS).status == HTTPStatus.OK
        except OSError:
            return False


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def agentctl(
    address: str, arguments: Sequence[str], stderr: int, *, columns: int
) -> subprocess.CompletedProcess[str]:
    """Run ``agentctl`` against the agent or relay at *address*; again, while that is too busy to answer it.

    Raises:
        TimeoutError: it does not end.

    """
    environment = {**os.environ, "AGENTCTL_ADDRESS": address, "COLUMNS": str(columns), "NO_COLOR": "1"}
    wait = wait_for_others()
    while True:
        done = run_command([str(AGENTCTL), *arguments], env=environment, stderr=stderr)
        late = done.returncode and _LATE.format(address) in done.stdout + done.stderr
        if not late or wait.over():
            return done
        time.sleep(_PAUSE_SECONDS)


def typed(arguments: Sequence[str]) -> str:
    """Return a command as it is typed."""
    return f"agentctl {shlex.join(arguments)}"
