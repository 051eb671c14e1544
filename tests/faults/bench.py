"""An agent that things are done to, producers that go on all the while, and the oracle that judges."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.oracle import Book, Oracle, read_book
from tests.support.agent.agent import AgentProcess, short_directory, wait_until
from tests.support.agent.forked_agent import launch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOT = Path(__file__).parents[2]
# A producer waits for this long for its last acknowledgements; its back-off is 5 s at most.
_SETTLE = 60.0


class FaultyAgent(AgentProcess):
    """The agent of `tests.faults.agent_main`; ``fault`` is for the next start only."""

    fault = ""

    def command(self) -> list[str]:
        """Return the command line of the agent that can be told to die."""
        return [word.replace("penstock.agent", "tests.faults.agent_main") for word in super().command()]

    def launch(self) -> None:
        """Start it and do not wait."""
        environment = {**self._env, "FAULT": self.fault}
        self.fault = ""
        self.process = launch(self.command(), env=environment, log=self._log)

    def start(self) -> FaultyAgent:
        """Start it and wait until it is ready, unless it is about to die."""
        dies = bool(self.fault)
        self.launch()
        if not dies:
            self.wait_ready()
        return self

    def wait_death(self, deadline: float = 90.0) -> int:
        """Wait until it has died by itself; returns its exit code."""
        assert self.process is not None
        code = self.process.wait(deadline)
        self.process = None
        return code


class Producer:
    """A producer's process."""

    def __init__(self, directory: Path, endpoint: str, number: int, rate: int) -> None:
        self.word = f"p{number}"
        self.directory = directory
        # "penstock has no agent": it is to be so.
        self._log = directory / f"{self.word}.log"
        command = [
            sys.executable, "-m", "tests.faults.producer",
            f"--endpoint={endpoint}",
            f"--word={self.word}",
            f"--engine={number}",
            f"--rate={rate}",
            f"--deadline={_SETTLE}",
            f"--ledger={self.ledger}",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
                env={**os.environ, "GRPC_VERBOSITY": "NONE", "PENSTOCK_GUARD": ""},
                text=True,
            )

    @property
    def ledger(self) -> Path:
        """Its own ledger."""
        return self.directory / f"{self.word}.ledger"

    def command(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def finish(self) -> None:
        """Wait for its end, which :meth:`command` has asked for."""
        code = self._process.wait(_SETTLE + 30)
        assert code == 0, f"{self.word} ended with {code}:\n{self._log.read_text()}"

    def close(self) -> None:
        """End it in any case."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Bench:
    """What :func:`bench` yields.

    Attributes:
        agent: the agent; dead or alive as the test wants it.
        producers: under traffic until :meth:`settle`.
        oracle: what the log holds.

    """

    def __init__(self, directory: Path, agent: FaultyAgent) -> None:
        self.directory = directory
        self.agent = agent
        self.oracle = Oracle(agent.state_dir)
        self.producers: list[Producer] = []

    def books(self) -> list[Book]:
        """Read all ledgers, those of forked children too."""
        return [read_book(path) for path in sorted(self.directory.glob("*.ledger"))]

    def ended(self) -> list[Book]:
        """Return the ledgers of those that have ended."""
        return [book for book in self.books() if book.emitted is not None]

    def acknowledged(self) -> int:
        """Return how many entries have been acknowledged so far."""
        return sum(len(book.acknowledged) for book in self.books())

    def traffic(self, count: int = 30, deadline: float = 60.0) -> None:
        """Wait until each producer has got *count* more acknowledgements."""
        before = {book.word: len(book.acknowledged) for book in self.books()}

        def flows() -> bool:
            now = {book.word: len(book.acknowledged) for book in self.books()}
            return all(
                now.get(producer.word, 0) >= before.get(producer.word, 0) + count
                for producer in self.producers
            )

        wait_until(flows, "traffic from every producer", deadline)

    def audit(self) -> None:
        """Check integrity as things are: first the ledgers are read, then the log, which only grows."""
        books = self.books()
        self.oracle.look()
        self.oracle.check(books)
        # None while the agent is down, or has heard of no source yet.
        assert not self.agent.metric("penstock_unaccounted_entries")

    def settle(self) -> None:
        """End the traffic and check all that must hold: on the live agent, and on its next life."""
        wait_until(
            lambda: self.agent.metric("penstock_unaccounted_entries") is not None, "a source's account"
        )
        self.audit()
        for producer in self.producers:
            producer.command("stop")
        for producer in self.producers:
            producer.finish()
        self.oracle.look()
        self.oracle.close(self.books())
        self.check_counters()
        self.agent.kill()
        self.agent.start()
        self.check_counters()

    def check_counters(self) -> None:
        """Check that the metrics count what the log holds, each entry once; while they are saved they stand still."""
        expected = self.oracle.stored.total() + self.oracle.others, self.oracle.lost.total()
        wait_until(lambda: self.counted() == expected, f"counters of {expected} (stored, lost)")

    def counted(self) -> tuple[float, float]:
        """Return how many entries of engines the metrics count as stored, and how many as lost."""
        stored = self.agent.metric("penstock_events_total") or 0
        agents = self.agent.metric("penstock_events_total", kind="source_lost") or 0
        return stored - agents, self.agent.metric("penstock_events_dropped_total") or 0


@contextmanager
def bench(
    producers: int = 2,
    rate: int = 300,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Bench]:
    """Run an agent and producers that emit *rate* entries a second each; all have ended at the end."""
    with short_directory() as directory:
        agent = FaultyAgent(directory, ["--source-grace=1h", *args], env)
        made = Bench(directory, agent)
        try:
            agent.start()
            made.producers += [Producer(directory, agent.listen, n, rate) for n in range(producers)]
            yield made
        finally:
            for producer in made.producers:
                producer.close()
            agent.stop()
