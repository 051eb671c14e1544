"""The cost of Penstock to an engine while its agent fails: ``python -m benchmarks.engine_in_faults``.

A real vLLM engine on the CPU with a tiny model, which maximises Penstock's share of a step. In each experiment the engine runs
with and without Penstock in turns (:mod:`benchmarks.in_engine.schedule`) under a closed-loop load, while the agent is in one kind of
trouble. The blocks without Penstock, compared with each other, show the noise. Then the idle engine's CPU is compared with a
second engine's without Penstock.

After each experiment the agent is healthy again, and its counts are compared with what the engine has sent.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.document import interval, spread, table
from benchmarks.in_engine.client import CPU, MAIN, THROUGHPUT, Switched, Switching, row
from benchmarks.in_engine.client import MODULE as SWITCHED
from benchmarks.load.engines import (
    MODULE,
    VARIANT,
    agent_counts,
    cpu_seconds,
    idle_priority,
    start_servers,
    wait_for_counts,
)
from benchmarks.load.traffic import Load, Route, drive
from demo.common.agent import Agent
from demo.servers import ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from benchmarks.in_engine.client import Measure
    from demo.servers import Server

LOAD = Load("4 at a time", 4, 24, 16, 64, varies=True)
SECONDS = 75.0
IDLE_SECONDS = 10.0
WITH, WITHOUT = "with", "without"
_SECONDS_BETWEEN_KILLS = 0.5


@dataclass
class Experiment:
    """One row of the table.

    Attributes:
        idle: the share of a core, in percent, by engine.
        requests: number of finished requests that the engine has reported.
        counted, dropped: how many of them the agent has counted, and has been told of as lost.

    """

    name: str
    found: Switched
    idle: dict[str, float]
    requests: int = 0
    counted: int = 0
    dropped: int = 0

    def cells(self) -> list[str]:
        """Return the row's text."""
        return [
            self.name,
            *self._ratios(THROUGHPUT),
            *self._ratios(CPU),
            self._ratio(MAIN, noise=False),
            *(f"{self.idle[engine]:.2f}" for engine in (WITH, WITHOUT)),
            f"{self.requests:,}",
            f"{self.counted:,}",
            f"{self.dropped:,}",
        ]

    def _ratios(self, measure: Measure) -> list[str]:
        return [self._ratio(measure, noise=noise) for noise in (False, True)]

    def _ratio(self, measure: Measure, *, noise: bool) -> str:
        ratio = row(self.found.noise if noise else self.found.pairs, measure, "").ratio
        return f"{spread(ratio)}, {interval(ratio)}"


HEADERS = (
    "agent", "throughput, with ÷ without", "noise", "CPU by token, with ÷ without", "noise", "main thread by step, with ÷ without",
    "idle CPU %, with", "without", "requests", "counted", "dropped",
)  # fmt: skip


# The agent's faults: each lasts as long as its context and leaves a healthy agent.


@contextmanager
def absent(agent: Agent) -> Iterator[None]:
    """Stop the agent."""
    agent.stop()
    try:
        yield
    finally:
        agent.start()


@contextmanager
def stopped(agent: Agent) -> Iterator[None]:
    """Send SIGSTOP: the agent holds its connections and does nothing."""
    agent.child.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.child.signal(signal.SIGCONT)


@contextmanager
def killed(agent: Agent) -> Iterator[None]:
    """Repeat ``kill -9``, each time half a second after the agent is ready."""
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(_SECONDS_BETWEEN_KILLS):
            agent.kill()
            agent.start()

    with ThreadPoolExecutor(1) as killer:
        done = killer.submit(kill)
        try:
            yield
        finally:
            ended.set()
            done.result()


@contextmanager
def full_disk(agent: Agent) -> Iterator[None]:
    """Limit the size of its files, so that it does not acknowledge.

    Raises:
        RuntimeError: the agent could still write its journal at the end.

    """
    before = resource.prlimit(agent.child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(agent.child.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
        if not agent.metrics().value("penstock_agent_degraded", reason="journal_unwritable"):
            raise RuntimeError("The disk was not full: the agent could write its journal.")
    finally:
        resource.prlimit(agent.child.pid, resource.RLIMIT_FSIZE, before)


TROUBLES: dict[str, Callable[[Agent], AbstractContextManager[None]]] = {
    "healthy": lambda _: nullcontext(),
    "absent": absent,
    "stopped (SIGSTOP)": stopped,
    "killed again and again": killed,
    "disk full": full_disk,
}


# The engines


def idle_cpu(servers: dict[str, Server]) -> dict[str, float]:
    """Return the CPU of each idle engine in percent of a core."""
    before = {name: cpu_seconds(server) for name, server in servers.items()}
    time.sleep(IDLE_SECONDS)
    return {
        name: 100 * (cpu_seconds(server) - before[name]) / IDLE_SECONDS for name, server in servers.items()
    }


def start_engines(endpoint: str, switch: Switching, directory: Path, parts: ExitStack) -> dict[str, Server]:
    """Start both engines and wait until they are ready; *parts* stops them."""
    env = {**VARIANT, "PENSTOCK_ENDPOINT": endpoint, **switch.env}
    specs = [ServerSpec(WITH, module=SWITCHED, env=env), ServerSpec(WITHOUT, module=MODULE, env=VARIANT)]
    return start_servers(specs, directory, parts, say)


def run(
    name: str, agent: Agent, servers: dict[str, Server], switch: Switching, before: int, seconds: float
) -> Experiment:
    """Run one experiment; *before* is the number of finished requests reported until now."""
    route = Route(servers[WITH].url)
    counted, dropped = agent_counts(agent)
    # In a pod the agent has a core of its own.
    with idle_priority(agent.child.pid), TROUBLES[name](agent):
        result = Experiment(name, switch.watched(route, LOAD, seconds), idle_cpu(servers))
    result.requests = switch.told(route) - before
    now = wait_for_counts(agent, counted + dropped + result.requests)
    result.counted, result.dropped = now[0] - counted, now[1] - dropped
    return result


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of each experiment (default: {SECONDS:g})"
    )
    options = parser.parse_args()
    # The engines end with this process, however it ends; a shell's background job would ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place, ExitStack() as parts:
        agent = Agent(Path(place), engines=1)
        parts.callback(agent.stop)
        agent.start()
        switch = Switching(Path(place) / "switch")
        servers = start_engines(agent.endpoint, switch, Path(place), parts)
        route = Route(servers[WITH].url)
        drive(route, LOAD, seed=0)
        before = switch.told(route)
        wait_for_counts(agent, before)
        lines = []
        for name in TROUBLES:
            say(f"{name}: {options.seconds:.0f} s by turns, {IDLE_SECONDS:.0f} s of rest")
            result = run(name, agent, servers, switch, before, options.seconds)
            before += result.requests
            lines.append(result.cells())
            say(table(HEADERS, lines[-1:]))
            rate = statistics.median(pair.other.throughput for pair in result.found.pairs)
            parts.callback(print, f"{name}: {len(result.found.pairs)} eights, {rate:,.0f} tokens/s without")
        print(table(HEADERS, lines), flush=True)
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
