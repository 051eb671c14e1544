"""The processes of the fleet demo: what holds the policies, three pods with an agent and engines, two relays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from demo.common.agent import AGENTCTL, CommandResult, agentctl, typed
from demo.common.processes import Child
from demo.common.progress import report
from demo.common.steps import StepError, until
from demo.servers import ROOT

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from pathlib import Path

    from demo.fleet.place import Place

PODS = ("decode-0", "decode-1", "decode-2")
ENGINES = 8
_COLUMNS = 140


class Stack:
    """What runs; everything is below one directory."""

    def __init__(self, directory: Path, place: Place) -> None:
        """Start nothing yet; the policies are at *place*."""
        self._directory = directory
        self.place = place
        self._trouble = directory / "trouble"
        self._children: dict[str, Child] = {}
        self._ended = ExitStack()
        # The relay that agentctl asks.
        self.relay = "relay-0"

    def start_place(self) -> None:
        """Start what holds the policies."""
        self.place.start(self._directory, self._run)
        report("what holds the policies answers")

    def start_pods(self) -> None:
        """Start each pod's agent and engines."""
        for name in PODS:
            place = self._place(name)
            identity = {"POD_NAME": name, "POD_NAMESPACE": "vllm"}
            self._run(
                name,
                [
                    *(sys.executable, "-m", "penstock.agent", "--listen", self._socket(name, "ingest")),
                    *("--admin-listen", self._socket(name, "admin"), "--http", "127.0.0.1:0"),
                    *("--page", "off"),
                    *("--state-dir", str(place / "state"), "--engines-expected", str(ENGINES)),
                    *self.place.options("agent"),
                ],
                identity,
            )
        for name in PODS:
            until(lambda name=name: self._answers(name, "get", "engines"), f"{name} does not answer")  # type: ignore[misc]
            environment = {
                "PENSTOCK_ENDPOINT": self._socket(name, "ingest"),
                "PENSTOCK_LABELS": f"role=decode,pod={name}",
                "POD_NAME": name,
                "POD_NAMESPACE": "vllm",
            }
            command = [
                *(sys.executable, "-m", "demo.fleet.engines"),
                *("--count", str(ENGINES), "--trouble", str(self._trouble)),
            ]
            self._run(f"{name}-engines", command, environment)
        report("the agents answer, and their engines start")

    def start_relays(self, count: int = 2) -> None:
        """Start relays; the first one is asked."""
        listed = ",".join(f"{name}={self._socket(name, 'admin')}" for name in PODS)
        for number in range(count):
            name = f"relay-{number}"
            self._place(name)
            self._run(
                name,
                [
                    *(sys.executable, "-c", "from penstock.agent.__main__ import relay; relay()"),
                    *("--agents", listed, "--http", "127.0.0.1:0", *self.place.options("relay")),
                    *("--page", "127.0.0.1:0"),
                    *("--admin-listen", self._socket(name, "admin")),
                ],
                {},
            )
        for number in range(count):
            until(
                lambda number=number: self._answers(f"relay-{number}", "get", "engines"),  # type: ignore[misc]
                f"relay-{number} does not answer",
            )
        report("the relays answer")

    def ctl(self, *arguments: str, at: str = "") -> CommandResult:
        """Run agentctl against the relay, or what *at* names."""
        address = self._socket(at or self.relay, "admin")
        done = agentctl(address, arguments, subprocess.STDOUT, columns=_COLUMNS)
        return CommandResult(typed(arguments), done.returncode, done.stdout.rstrip())

    def ctl_json(self, *arguments: str) -> Any:
        """Run agentctl and return what it prints as JSON; that an agent did not answer is on its stderr.

        Raises:
            StepError: its exit code is not 0.

        """
        arguments = (*arguments, "-o", "json")
        done = agentctl(self._socket(self.relay, "admin"), arguments, subprocess.PIPE, columns=_COLUMNS)
        if done.returncode:
            raise StepError(f"{typed(arguments)} exited with {done.returncode}: {done.stderr}{done.stdout}")
        return json.loads(done.stdout)

    def break_loads(self) -> None:
        """Let the KV of some requests of all engines be impossible to load from now on."""
        self._trouble.touch()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._children[name].signal(number)

    def kill_relay(self, name: str) -> None:
        """Kill a relay; agentctl asks the other from now on."""
        self._children[name].kill()
        self.relay = "relay-1" if name == "relay-0" else "relay-0"

    def leader(self) -> str:
        """Return the relay that holds the lease; empty for none."""
        for name in ("relay-0", "relay-1"):
            if self._children[name].running and '"lease taken"' in self._log(name):
                return name
        return ""

    def hints(self) -> list[tuple[str, str]]:
        """Return what may be tried and looked at, each with its name."""
        found = [
            ("agentctl", f"export AGENTCTL_ADDRESS={self._socket(self.relay, 'admin')}"),
            ("", f"{AGENTCTL} top"),
            ("policies", self.place.hint()),
            ("page", self._page()),
            ("logs", str(self._directory)),
        ]
        return [(name, hint) for name, hint in found if hint]

    def _page(self) -> str:
        """Return the address of the living relay's page, which is in its log; empty where it is not served."""
        records = [json.loads(line) for line in self._log(self.relay).splitlines() if line.startswith("{")]
        return next((str(each["page"]) for each in records if each.get("page")), "")

    def stop(self) -> None:
        """End everything. Idempotent."""
        self._ended.close()

    def _place(self, name: str) -> Path:
        place = self._directory / name
        place.mkdir(exist_ok=True)
        return place

    def _socket(self, name: str, kind: str) -> str:
        return f"unix://{self._directory / name}/{kind}.sock"

    def _log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def _answers(self, name: str, *arguments: str) -> bool:
        child = self._children[name]
        if not child.running:
            raise StepError(child.ended())
        return self.ctl(*arguments, at=name).code == 0

    def _run(self, name: str, command: list[str], environment: Mapping[str, str]) -> Child:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        child = Child(
            name,
            command,
            env={**inherited, "PYTHONPATH": paths, **environment},
            cwd=self._directory,
            log=self._directory / f"{name}.log",
        )
        self._children[name] = child
        self._ended.callback(child.stop)
        return child
