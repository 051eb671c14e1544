"""What an engine pays for Penstock while its agent is in trouble: ``python -m benchmarks.engine_in_faults``.

Three real vLLM engines on the CPU with a tiny model, which makes Penstock's part of a step as large as it can be: one
with Penstock, two without. In each experiment they take turns with the same closed-loop load, in another order each
round, while the agent is as the experiment says, also in the turns of the engines that do not know it. Ratios are
taken round by round. The second engine without Penstock against the first one shows the noise. Then nobody asks
anything of them for a while, and what they take all the same is compared.

After each experiment the agent is well again, and what the engine told it is compared with what was asked of the engine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import signal
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engines import MODULE, VARIANT, cpu_seconds, settled, started, told
from demo.agent import Agent
from demo.client import complete
from demo.servers import ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from demo.servers import Server

CLIENTS = 4
TOKENS = 64
IDLE_SECONDS = 10.0
WITH, WITHOUT, AGAIN = "with", "without", "without-again"
_PROMPT = "A penstock is the gate and gauge at the head of a channel."
_SECONDS_BETWEEN_KILLS = 0.5


@dataclass(frozen=True)
class Turn:
    """What one engine did in one round: requests a second, and CPU seconds of all its processes."""

    throughput: float
    cpu: float


@dataclass
class Experiment:
    """One row of the table."""

    name: str
    rounds: list[dict[str, Turn]] = field(default_factory=list)
    requests: int = 0
    counted: int = 0
    dropped: int = 0
    idle: dict[str, float] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """Return the row's text."""
        return [
            self.name,
            *(self._ratio(engine, what) for what in ("throughput", "cpu") for engine in (WITH, AGAIN)),
            *(f"{self.idle[engine]:.2f}" for engine in (WITH, WITHOUT, AGAIN)),
            f"{self.requests:,}",
            f"{self.counted:,}",
            f"{self.dropped:,}",
        ]

    def _ratio(self, engine: str, what: str) -> str:
        return spread([getattr(turns[engine], what) / getattr(turns[WITHOUT], what) for turns in self.rounds])


HEADERS = (
    "agent", "throughput, with ÷ without", "noise", "CPU, with ÷ without", "noise", "idle CPU %, with",
    "without", "without", "requests", "counted", "dropped",
)  # fmt: skip


def spread(values: Sequence[float]) -> str:
    """Return the median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} [{low:.3f} {high:.3f}]"


def row(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


# The agent's troubles: each holds while its context does, and leaves a healthy agent.


@contextmanager
def absent(agent: Agent) -> Iterator[None]:
    """Nobody listens."""
    agent.stop()
    try:
        yield
    finally:
        agent.start()


@contextmanager
def stopped(agent: Agent) -> Iterator[None]:
    """SIGSTOP: it is there, holds its connections and does nothing."""
    agent.child.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.child.signal(signal.SIGCONT)


@contextmanager
def killed(agent: Agent) -> Iterator[None]:
    """``kill -9`` as soon as it has been ready for half a second, again and again."""
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
    """No file of it may grow, so that it refuses to acknowledge.

    Raises:
        RuntimeError: at the end it could write its journal all the same.

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


def drive(server: Server, requests: int) -> Turn:
    """Send *requests*, some at a time, and wait for all of them.

    Raises:
        RuntimeError: one was not served.

    """

    def send(_: int) -> int:
        return complete(server.url, _PROMPT, max_tokens=TOKENS).status

    cpu, begun = cpu_seconds(server), time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        statuses = set(clients.map(send, range(requests)))
    took = time.monotonic() - begun
    if statuses != {HTTPStatus.OK}:
        raise RuntimeError(f"{server.spec.name} answered {sorted(statuses)} instead of 200 only.")
    return Turn(requests / took, cpu_seconds(server) - cpu)


def rest(servers: dict[str, Server]) -> dict[str, float]:
    """Return the share of a core, in percent, that each engine takes while nobody asks anything of it."""
    before = {name: cpu_seconds(server) for name, server in servers.items()}
    time.sleep(IDLE_SECONDS)
    return {
        name: 100 * (cpu_seconds(server) - before[name]) / IDLE_SECONDS for name, server in servers.items()
    }


def start_engines(endpoint: str, directory: Path, parts: ExitStack) -> dict[str, Server]:
    """Start the three, wait until they serve, and have *parts* stop them."""
    env = {WITH: {**VARIANT, "PENSTOCK_ENDPOINT": endpoint}}
    specs = [ServerSpec(name, module=MODULE, env=env.get(name, VARIANT)) for name in (WITH, WITHOUT, AGAIN)]
    return started(specs, directory, parts)


def run(name: str, agent: Agent, servers: dict[str, Server], rounds: int, requests: int) -> Experiment:
    """Make one experiment."""
    result = Experiment(name)
    counted, dropped = told(agent)
    orders = itertools.cycle(itertools.permutations(servers))
    with TROUBLES[name](agent):
        for order in itertools.islice(orders, rounds):
            result.rounds.append({each: drive(servers[each], requests) for each in order})
        result.idle = rest(servers)
    result.requests = rounds * requests
    now = settled(agent, counted + dropped + result.requests)
    result.counted, result.dropped = now[0] - counted, now[1] - dropped
    return result


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24, help="of each experiment; 2 or more (default: 24)")
    parser.add_argument("--requests", type=int, default=24, help="of each engine and round (default: 24)")
    options = parser.parse_args()
    # Whoever ends us, the engines have to go too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place, ExitStack() as parts:
        agent = Agent(Path(place), engines=1)
        parts.callback(agent.stop)
        agent.start()
        servers = start_engines(agent.endpoint, Path(place), parts)
        for server in servers.values():
            drive(server, options.requests)
        settled(agent, options.requests)
        print(row(HEADERS))
        print(row(["---", *["---:"] * (len(HEADERS) - 1)]))
        for name in TROUBLES:
            result = run(name, agent, servers, options.rounds, options.requests)
            print(row(result.cells()), flush=True)
            rate = statistics.median(turns[WITHOUT].throughput for turns in result.rounds)
            parts.callback(print, f"{name}: {rate * TOKENS:,.0f} tokens/s without")
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
