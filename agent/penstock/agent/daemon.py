"""The daemon: builds the parts, starts them in order, stops them in the reverse order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError
from penstock.agent.folding import FoldKeeper
from penstock.agent.http import HttpServer
from penstock.agent.ingest import IngestService, LossWatch
from penstock.agent.journal import AGENT_PROCESS, Journal, prepare_directory
from penstock.agent.listen import GrpcServer, Lock
from penstock.agent.metrics import AgentMetrics, Exemplars, Exposition, Fold
from penstock.agent.policy import Pauses, PolicyDatabase, PolicyFeed, PolicyStore
from penstock.agent.registry import Registry
from penstock.proto import __version__
from penstock.proto.v1 import policy_pb2_grpc

if TYPE_CHECKING:
    from penstock.agent.config import Config

_log = structlog.get_logger(__name__)

_INGEST_MODE = 0o660
_ADMIN_MODE = 0o600
# After a restart engines come back when their own back-off allows it.
_RESTART_GRACES = 6


async def run(config: Config) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        PenstockError: it cannot start; one sentence.

    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    daemon = Daemon(config)
    starting = asyncio.ensure_future(daemon.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stopping
        _log.info("agent stopping")
    finally:
        stopping.cancel()
        starting.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await starting
        await daemon.stop()
    _log.info("agent stopped")


class Daemon:
    """All parts of one agent."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._parts = AsyncExitStack()
        self._phase = "starting"
        self._stop_at: float | None = None
        self._exposition: Exposition | None = None
        self._journal: Journal | None = None

    def _remaining(self) -> float:
        """Seconds left of the shared deadline of the drain; never quite nothing."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._config.drain_deadline
        return max(0.1, self._stop_at - time.monotonic())

    async def start(self) -> None:
        """Bring everything up; returns when engines can connect.

        Raises:
            PenstockError: a part cannot start; :meth:`stop` undoes the rest.

        """
        config, parts = self._config, self._parts
        journal = self._journal = self._open_journal()
        config.state_dir.joinpath("addresses.json").unlink(missing_ok=True)
        parts.push_async_callback(journal.close)
        http = HttpServer(config.http, self._render, self._health, self._readiness)
        await http.start()
        parts.push_async_callback(http.stop)

        fold = Fold()
        keeper = FoldKeeper(journal, fold)
        parts.callback(keeper.save)
        replayed = await keeper.restore()
        saving = asyncio.ensure_future(keeper.keep_saving())
        parts.callback(saving.cancel)

        registry = Registry(time.time_ns)
        own = AgentMetrics(
            journal.created_unix_nano, config.engines_expected, commit_queue=lambda: journal.depth
        )
        journal.observe_commits(own.commit.observe)
        journal.on_commit(lambda _, source, batch: registry.committed(source.epoch, batch))

        policies = PolicyDatabase.open(config.state_dir)
        parts.callback(policies.close)
        store, pauses = PolicyStore(policies), Pauses(policies)
        feed = PolicyFeed(store, pauses)

        exemplars = Exemplars()
        self._exposition = Exposition(fold, registry.sources, exemplars, own, wanted=feed.wanted)

        losses = LossWatch(journal, parts.enter_context(journal.reader()), config.source_grace)
        parts.push_async_callback(losses.stop)
        self._restore_sources(journal, registry, losses)
        ingest = IngestService(journal, registry, pauses, losses, own.ack.observe)

        engines = GrpcServer(config.listen, "--listen", _INGEST_MODE)
        engines.server.add_generic_rpc_handlers((ingest.handler(),))
        policy_pb2_grpc.add_PolicyFeedServicer_to_server(feed, engines.server)  # type: ignore[no-untyped-call]
        admin = GrpcServer(config.admin_listen, "--admin-listen", _ADMIN_MODE)
        await self._serve(admin)
        await self._serve(engines)
        parts.push_async_callback(self._drain, ingest, feed, engines)
        self._phase = "serving"
        addresses = {"listen": str(engines.address), "admin": str(admin.address), "http": str(http.address)}
        self._publish(addresses)
        _log.info("agent ready", version=__version__, pid=os.getpid(), replayed=replayed, **addresses)

    def _open_journal(self) -> Journal:
        """Open the state; its directory has one owner at a time."""
        state_dir = self._config.state_dir
        prepare_directory(state_dir)
        lock = Lock(state_dir / "lock", f"--state-dir {state_dir}")
        self._parts.callback(lock.release)
        return Journal.open(state_dir, self._config.pod_uid)

    async def _serve(self, server: GrpcServer) -> None:
        self._parts.push_async_callback(lambda: server.stop(min(1.0, self._remaining())))
        await server.start()

    def _restore_sources(self, journal: Journal, registry: Registry, losses: LossWatch) -> None:
        """Wait for the sources that an earlier life left open; who does not come back is lost."""
        with journal.reader() as reader:
            for row in reader.source_rows():
                if not row.closed and row.source.process != AGENT_PROCESS:
                    registry.restore(row.source, row.watermark, row.last_seen_unix_nano)
                    losses.away(row.source, row.last_seen_unix_nano, graces=_RESTART_GRACES)

    def _publish(self, addresses: dict[str, str]) -> None:
        path = self._config.state_dir / "addresses.json"
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps({"pid": os.getpid(), **addresses}))
        written.replace(path)
        self._parts.callback(path.unlink, missing_ok=True)

    async def _drain(self, ingest: IngestService, feed: PolicyFeed, engines: GrpcServer) -> None:
        """Take nothing new; commit and acknowledge what is in hand."""
        self._phase = "draining"
        await engines.set_serving(False)
        feed.close()
        await ingest.drain(self._remaining() / 2)

    async def stop(self) -> None:
        """Stop what was started, within the drain's deadline. Idempotent."""
        self._remaining()
        await self._parts.aclose()

    def _render(self, accept: str) -> tuple[bytes, str]:
        if self._exposition is None:
            raise StateError("the log is being replayed; the counters are not complete yet")
        return self._exposition.render(accept)

    def _health(self) -> str:
        journal = self._journal
        return "" if journal is None or journal.alive else "the journal's writer has ended"

    def _readiness(self) -> str:
        if self._phase != "serving":
            return f"the agent is {self._phase}"
        return self._journal.error if self._journal is not None else ""
