"""The real ingest service on a unix socket, on a loop in a thread, with its parts in reach."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.agent.ingest.admission import Admission, SourceAdmission
from penstock.agent.ingest.loss_detector import LossDetector
from penstock.agent.ingest.service import IngestService
from penstock.agent.journal.journal import Journal
from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.server.addresses import UnixAddress
from penstock.agent.server.grpc_server import GrpcServer
from penstock.agent.sources.engines import EngineOwners
from penstock.agent.sources.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from penstock.agent.model import EngineKey


class FakePauses:
    """Pauses that a test sets."""

    def __init__(self) -> None:
        self.keys: set[EngineKey] = set()
        self.callbacks: list[Callable[[], None]] = []

    def is_paused(self, key: EngineKey) -> bool:
        """Tell whether the test has paused *key*."""
        return key in self.keys

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Remember *callback*."""
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def set(self, keys: set[EngineKey]) -> None:
        """Change what is paused; on the loop."""
        self.keys = keys
        for callback in tuple(self.callbacks):
            callback()


class FakeRotation:
    """Orders out of rotation that a test sets."""

    def __init__(self) -> None:
        self.servers: dict[str, int] = {}
        self.callbacks: list[Callable[[], None]] = []

    def seconds_out(self, server: str) -> int:
        """Return what the test has set."""
        return self.servers.get(server, 0)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Remember *callback*."""
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def set(self, **servers: int) -> None:
        """Change which servers are out, and for how long; on the loop."""
        self.servers = servers
        for callback in tuple(self.callbacks):
            callback()


class IngestHarness:
    """What :func:`running_ingest` yields.

    Attributes:
        committed: (batch id, source, batch) of each commit.
        acks: durations from arrival to acknowledgement.
        metrics: the agent's own.

    """

    def __init__(self, directory: Path, grace: float) -> None:
        self.address = f"unix://{directory}/ingest.sock"
        self.pauses = FakePauses()
        self.rotation = FakeRotation()
        self.owners = EngineOwners(grace)
        self.registry = Registry(time.time_ns)
        self.committed: list[Any] = []
        self.acks: list[float] = []
        self._directory = directory
        self._grace = grace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run *work* on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call *function* on the loop and return its result."""

        async def work() -> Any:
            return function(*args)

        return self.run(work())

    async def _start(self) -> None:
        self.journal = Journal.open(self._directory)
        self.journal.on_commit(
            lambda number, source, contents: self.committed.append((number, source, contents.batch))
        )
        self.journal.on_commit(
            lambda _, source, contents: self.registry.committed(source.epoch, contents.batch)
        )
        self.losses = LossDetector(self.journal, self._grace)
        self.metrics = AgentMetrics(0)
        self.service = IngestService(
            self.journal,
            self.registry,
            self.pauses,
            self.rotation,
            self.losses,
            self.acks.append,
            source_admission=SourceAdmission(
                self.journal.source, self.owners, Admission(self.registry.connected_engines)
            ),
            count_refused=self.metrics.count_refused,
            count_broken=self.metrics.count_broken_stream,
        )
        self.server = GrpcServer(UnixAddress(self._directory / "ingest.sock"), "--listen", 0o660)
        self.server.server.add_generic_rpc_handlers((self.service.handler(),))
        await self.server.start()

    async def _stop(self) -> None:
        await self.service.drain(5)
        await self.server.stop(1)
        await self.losses.stop()
        await self.journal.close()

    def start(self) -> None:
        """Serve."""
        self._thread.start()
        self.run(self._start())

    def stop(self) -> None:
        """Drain and end."""
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


@contextmanager
def running_ingest(directory: Path, grace: float = 30.0) -> Iterator[IngestHarness]:
    """Serve Ingest on ``<directory>/ingest.sock``."""
    harness = IngestHarness(directory, grace)
    harness.start()
    try:
        yield harness
    finally:
        harness.stop()
