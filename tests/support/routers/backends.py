"""API servers with Penstock and an agent that orders them out of rotation, for a router of another project to stand in front."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from demo.common.agent import Agent
from demo.common.client import fetch, post_json
from demo.common.processes import Child, free_port
from demo.common.steps import until
from demo.servers import LOOPBACK, ROOT
from tests.support.agent.agent import short_directory
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

READY = "/health?penstock=ready"

_MODULE = "tests.support.routers.backend_process"


class Backends:
    """Servers by their names.

    Attributes:
        urls: the API of each.

    """

    def __init__(self, agent: Agent, ports: Mapping[str, int]) -> None:
        self._agent = agent
        self.urls = {name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()}

    def out(self, name: str) -> None:
        """Order a server out of rotation; returns once its API server says so."""
        self._ctl("eject", f"{name}/0", "--for", "1h", "--even-last", "--timeout", "60s")
        assert self.status(name) == 503

    def back(self) -> None:
        """End all orders."""
        self._ctl("eject", "off", "--timeout", "60s")
        assert {self.status(name) for name in self.urls} == {200}

    def status(self, name: str) -> int:
        """Return what it answers for its readiness."""
        return fetch(self.urls[name] + READY).status

    def requests(self, name: str) -> list[dict[str, Any]]:
        """Return the bodies of all requests that it has had."""
        text = fetch(f"{self.urls[name]}/stand-in/requests").text
        found: list[dict[str, Any]] = json.loads(text)
        return found

    def counts(self) -> dict[str, int]:
        """Return how many requests each has had."""
        return {name: len(self.requests(name)) for name in self.urls}

    def fail(self, name: str, answer: Mapping[str, Any] | None) -> None:
        """Let a server answer requests with 503, and the ``body`` and ``headers`` of *answer*; with None as before."""
        assert post_json(f"{self.urls[name]}/stand-in/failure", answer).status == 200  # type: ignore[arg-type]

    def reset(self) -> None:
        """End what a test has ordered."""
        for name in self.urls:
            self.fail(name, None)
        self.back()

    def _ctl(self, *arguments: str) -> None:
        done = self._agent.ctl(*arguments)
        assert done.code == 0, f"{done.line}: {done.output}"


@contextmanager
def running_backends(*names: str, logs: Path) -> Iterator[Backends]:
    """Run servers of these names, and their agent, until the end of the block."""
    ports = {name: free_port() for name in names}
    with short_directory() as directory, ExitStack() as ends:
        agent = Agent(directory, engines=len(names))
        agent.start()
        ends.callback(agent.stop)
        for name in names:
            # What eject names: the engines of a server.
            ends.enter_context(FakeEngine(agent.endpoint, engine="0", server=name))
        child = Child(
            "backends",
            [sys.executable, "-m", _MODULE, *(f"{name}={port}" for name, port in ports.items())],
            env={**os.environ, "PENSTOCK_ENDPOINT": agent.endpoint},
            cwd=ROOT,
            log=logs / "backends.log",
        )
        ends.callback(child.stop)
        found = Backends(agent, ports)
        # The first question connects each to the agent.
        child.wait_until(lambda: _all_ready(found), what="ready")
        until(lambda: all(_connected(agent, name) for name in names), "the API servers are not connected")
        yield found


def _all_ready(backends: Backends) -> bool:
    try:
        return all(backends.status(name) == 200 for name in backends.urls)
    except OSError:
        return False


def _connected(agent: Agent, name: str) -> bool:
    """Whether its API server has said what hooks it has."""
    said = agent.ctl("describe", "engine", f"{name}/0").output
    return "hooks installed" in said.partition("  api (pid")[2]
