"""The daemon: builds the parts, starts them in order, stops them in the reverse order."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import structlog
from penstock.agent.admin.authorization import AccessInterceptor
from penstock.agent.admin.service import AdminService
from penstock.agent.admin.support import AgentContext, Retirement
from penstock.agent.daemon.health import Health
from penstock.agent.daemon.housekeeping import Housekeeper
from penstock.agent.daemon.state_gauges import StateGauges
from penstock.agent.errors import StateError, UnwritableError
from penstock.agent.ingest import Admission, ContractViolations, IngestService, LossDetector, SourceAdmission
from penstock.agent.journal import Journal, describe
from penstock.agent.metrics import AgentMetrics, Aggregator, AggregatorCheckpoint, Exemplars, Gatherer
from penstock.agent.model import AGENT_PROCESS, ENGINE_CORE
from penstock.agent.policy.distribution import PolicyFeed, PolicyFeedService, SampleRatios
from penstock.agent.policy.orders import OrderStore, Pauses
from penstock.agent.policy.store import AuditLimit, PolicyDatabase, PolicyStore
from penstock.agent.server import Certificates, GrpcServer, HttpServer, TcpAddress, allow_files
from penstock.agent.sources import EngineOwners, Registry
from penstock.agent.state import StateDirectory, identity, spoils_a_start, words_of
from penstock.agent.traces.export import ExportStatus, TraceExporter, probe_endpoint
from penstock.proto import __version__
from penstock.proto.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from penstock.agent.daemon.config import Config
    from penstock.agent.model import EngineKey
    from penstock.agent.policy.files.file_source import FileSource
    from penstock.proto.v1.admin_pb2 import AgentStatus

_log = structlog.get_logger(__name__)

_INGEST_MODE = 0o660
_ADMIN_MODE = 0o600
# After a restart engines come back when their own back-off allows it, and this is the longest.
_BACK_OFF_SECONDS = 5.0
# Of the drain's deadline: for calls that are still open, and for what comes after the export.
_LAST_CALLS_SECONDS = 1.0
_AFTER_EXPORT_SECONDS = 2.0
_ADDRESSES = "addresses.json"
_MOST = (1 << 64) - 1


async def run(config: Config) -> None:
    """Run the agent until SIGTERM or SIGINT.

    Raises:
        PenstockError: it cannot start, or cannot go on; one sentence.

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
            # What is here now stays: a full collection, which stops everything for 50 ms, need not look at it every few seconds.
            gc.freeze()
            # Whichever comes first.
            daemon.fatal.add_done_callback(lambda _: stop.set())
            await stopping
            if daemon.fatal.done():
                raise daemon.fatal.result()
        _log.info("agent stopping")
    finally:
        stopping.cancel()
        starting.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await starting
        await daemon.stop()
    _log.info("agent stopped")


_Stored: TypeAlias = tuple[PolicyDatabase, PolicyStore, Pauses, OrderStore]


def _read_policies(database: PolicyDatabase) -> _Stored:
    try:
        return database, PolicyStore(database), Pauses(database), OrderStore(database)
    except BaseException:
        database.close()
        raise


@dataclass(frozen=True, slots=True)
class _Policies:
    database: PolicyDatabase
    store: PolicyStore
    pauses: Pauses
    orders: OrderStore
    feed: PolicyFeed
    files: FileSource | None


class Daemon:
    """All parts of one agent; each puts its own end on a stack when it begins.

    Attributes:
        fatal: gets the error that the agent cannot go on after.

    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._parts = AsyncExitStack()
        self._condition = Health()
        self._stop_at: float | None = None
        self._stopping = threading.Event()
        self._started_unix_nano = time.time_ns()
        self.fatal: asyncio.Future[StateError] = asyncio.get_running_loop().create_future()
        self._http: HttpServer | None = None
        self._exporter: TraceExporter | None = None
        self._exposition: Gatherer | None = None
        self._refused = ContractViolations()
        self._losses: LossDetector | None = None
        self._listen_address = str(config.listen)

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
        allow_files()
        place = self._take_place()
        http = self._http = await self._start_http()
        journal, keeper, fold, replayed, stored = await self._open_state(place)
        holders = EngineOwners(self._config.source_grace)
        policies = await self._follow_policies(stored, holders)
        registry = Registry(time.time_ns, fold.account)
        journal.on_commit(lambda _, source, contents: registry.committed(source.epoch, contents.batch))

        exemplars, own = Exemplars(), self._measure(place, journal, keeper, policies)
        self._exporter = self._start_export(journal, policies, exemplars, own.export.observe)
        self._exposition = Gatherer(fold, registry.sources, exemplars, own, wanted=policies.feed.wanted)

        known = fold.known()
        admission = Admission(
            lambda: {*fold.known(), *registry.connected_engines()}, self._config.memory_limit
        )
        losses = self._losses = self._watch_losses(journal, registry, known, holders)
        door = SourceAdmission(journal.source, holders, admission)
        ingest = self._take_in(journal, registry, policies, own, losses, door)
        retirement = Retirement(
            journal, registry, fold, policies.feed, policies.database, after=self._config.retire_after
        )
        admin = await self._serve_admin(
            AgentContext(
                journal=journal,
                registry=registry,
                fold=fold,
                store=policies.store,
                pauses=policies.pauses,
                orders=policies.orders,
                feed=policies.feed,
                retirement=retirement,
                state_dir=place.path,
                stopping=self._stopping,
                try_backend=lambda: probe_endpoint(self._config.export),
                statuses=(self._describe, *([policies.files.describe] if policies.files else [])),
            )
        )
        feed = PolicyFeedService(policies.feed, own.refused.count)
        engines = await self._serve_engines(ingest, policies.feed, feed)
        retiring = asyncio.ensure_future(retirement.keep_retiring())
        self._parts.callback(retiring.cancel)
        house = Housekeeper(place, policies.database, self._condition, self.fatal)
        self._parts.push_async_callback(house.stop)
        self._listen_address = str(engines.address)
        self._condition.phase = "serving"
        addresses = {"listen": str(engines.address), **admin, "http": str(http.address)}
        self._publish(place.path, addresses)
        _log.info("agent ready", version=__version__, pid=os.getpid(), replayed=replayed, **addresses)

    def _take_place(self) -> StateDirectory:
        place = self._condition.place = StateDirectory(self._config.state_dir, self._config.state_limit)
        self._parts.callback(place.release)
        place.path.joinpath(_ADDRESSES).unlink(missing_ok=True)
        return place

    async def _open_state(
        self, place: StateDirectory
    ) -> tuple[Journal, AggregatorCheckpoint, Aggregator, int, _Stored]:
        """Open and read both databases in one place.

        That is the state directory or, where the disk has no room for what a start must write, a substitute.
        """
        try:
            journal, keeper, fold, replayed, stored = await self._read_state(place)
        except UnwritableError as error:
            place.leave(error)
            journal, keeper, fold, replayed, stored = await self._read_state(place)
        self._condition.journal, self._condition.policies = journal, stored[0]
        self._parts.push_async_callback(journal.close)
        self._parts.callback(stored[0].close)
        self._parts.callback(keeper.save)
        saving = asyncio.ensure_future(keeper.keep_saving())
        self._parts.callback(saving.cancel)
        return journal, keeper, fold, replayed, stored

    async def _read_state(
        self, place: StateDirectory
    ) -> tuple[Journal, AggregatorCheckpoint, Aggregator, int, _Stored]:
        journal, keeper, fold, replayed = await self._restore(place)
        try:
            return journal, keeper, fold, replayed, self._load_policies(place)
        except BaseException:
            await journal.close()
            raise

    async def _restore(self, place: StateDirectory) -> tuple[Journal, AggregatorCheckpoint, Aggregator, int]:
        """Open the journal and count what it holds; what turns out to be damaged meanwhile is replaced, twice at most."""
        salvages = 2
        while True:
            journal = Journal.open(
                place.path, self._config.pod_uid, place.limit, place.claim, salvages=salvages > 0
            )
            keeper = AggregatorCheckpoint(journal, fold := Aggregator())
            try:
                replayed = await keeper.restore()
            except BaseException as error:  # noqa: BLE001  (raised again, unless it is damage)
                try:
                    if not (salvages and spoils_a_start(error)):
                        raise
                    with describe(journal.path):
                        journal.mark_damaged(words_of(error))
                finally:
                    await journal.close()
                salvages -= 1
            else:
                return journal, keeper, fold, replayed

    async def _start_http(self) -> HttpServer:
        """Health answers before the log is replayed."""
        http = HttpServer(
            self._config.http,
            self._render,
            self._condition.health,
            self._condition.readiness,
            self._condition.degraded,
        )
        self._parts.push_async_callback(http.stop)
        await http.start()
        return http

    async def _follow_policies(self, stored: _Stored, holders: EngineOwners) -> _Policies:
        database, store, pauses, orders = stored
        files = await self._follow_files(store)
        feed = PolicyFeed(store, pauses, orders, holders=holders)
        return _Policies(database, store, pauses, orders, feed, files)

    def _load_policies(self, place: StateDirectory) -> _Stored:
        """Read the policies: what is there, else its copy, else none."""
        # Beside it there is its copy, and for a moment another one.
        size = min(self._config.audit_bytes, place.limit // 16)
        limit, damage = AuditLimit(self._config.audit_entries, size), ""
        for _ in range(2):
            try:
                return _read_policies(PolicyDatabase.open(place.path, limit, place.claim, damage=damage))
            except Exception as error:
                if not spoils_a_start(error):
                    raise
                damage = words_of(error)
        return _read_policies(
            PolicyDatabase.open(place.path, limit, place.claim, damage=damage, copies=False)
        )

    async def _follow_files(self, store: PolicyStore) -> FileSource | None:
        """Have the files' policies in the store before the first engine asks."""
        if self._config.policy_file is not None:
            # Imported here: an agent without a file needs no YAML.
            from penstock.agent.policy.files.file_source import FileSource  # noqa: PLC0415

            files = FileSource(self._config.policy_file, store)
            self._parts.push_async_callback(files.stop)
            await files.start()
            return files
        try:
            released = await store.release_files()
        except StateError as error:
            _log.warning(
                "there is no --policy-file any more; its policies cannot be released and stay read-only until a restart",
                error=str(error),
            )
            return None
        if released.results:
            _log.warning(
                "there is no --policy-file any more; its policies stay in force and can be changed by hand",
                policies=[item.name for item in released.results],
            )
        return None

    def _measure(
        self, place: StateDirectory, journal: Journal, keeper: AggregatorCheckpoint, policies: _Policies
    ) -> AgentMetrics:
        """Return the agent's own metrics; the export, which begins after them, is asked at each scrape."""

        def exporting() -> ExportStatus:
            return ExportStatus() if self._exporter is None else self._exporter.status()

        own = AgentMetrics(
            journal.created_unix_nano,
            self._config.engines_expected,
            commit_queue=lambda: journal.depth,
            export_backlog=lambda: max(0, keeper.at - exporting().position),
            policy_files=lambda: None if policies.files is None else policies.files.status,
            exporting=exporting,
            state=StateGauges(place, journal, self._condition).families,
            poisoned=lambda: keeper.poisoned,
            audit_trimmed=lambda: policies.database.audit_trimmed,
        )
        journal.observe_commits(own.commit.observe)
        return own

    def _take_in(
        self,
        journal: Journal,
        registry: Registry,
        policies: _Policies,
        own: AgentMetrics,
        losses: LossDetector,
        door: SourceAdmission,
    ) -> IngestService:
        """Return what engines will be served with."""
        ingest = IngestService(
            journal,
            registry,
            policies.pauses,
            losses,
            own.ack.observe,
            door=door,
            count_refused=own.refused.count,
            count_broken=own.count_broken_stream,
        )
        self._refused = ingest.refused
        return ingest

    def _start_export(
        self, journal: Journal, policies: _Policies, exemplars: Exemplars, observe: Callable[[float], None]
    ) -> TraceExporter:
        exporter = TraceExporter(
            journal,
            self._config.export,
            on_exported=exemplars.note,
            observe=observe,
            sample_ratio=SampleRatios(policies.store, policies.feed),
        )
        exporter.start()
        self._parts.push_async_callback(
            lambda: asyncio.to_thread(exporter.stop, max(0.1, self._remaining() - _AFTER_EXPORT_SECONDS))
        )
        return exporter

    def _watch_losses(
        self, journal: Journal, registry: Registry, known: Collection[EngineKey], holders: EngineOwners
    ) -> LossDetector:
        """Wait for the sources that an earlier life left open too; those that do not come back are lost."""
        losses = LossDetector(journal, self._config.source_grace)
        self._parts.push_async_callback(losses.stop)
        with journal.reader() as reader:
            closed = {}
            for row in reader.source_rows():
                if row.source.process == AGENT_PROCESS:
                    continue
                if row.closed:
                    closed[row.source.key, row.source.process, row.source.rank] = row
                    continue
                registry.restore(row.source, row.watermark, row.last_seen_unix_nano)
                losses.away(row.source, row.last_seen_unix_nano, more=_BACK_OFF_SECONDS)
                if row.source.process == ENGINE_CORE:
                    grace = self._config.source_grace + _BACK_OFF_SECONDS
                    holders.restore(row.source.key, row.source.credential, grace)
            # They are shown until they are retired; a successor that is open stands in their place already.
            taken = {(live.source.key, live.source.process, live.source.rank) for live in registry.sources()}
            for place, row in closed.items():
                if row.source.key in known and place not in taken:
                    goodbye = reader.ends_with_goodbye(row)
                    registry.restore(row.source, row.watermark, row.last_seen_unix_nano, said_goodbye=goodbye)
        return losses

    async def _serve_admin(self, context: AgentContext) -> dict[str, str]:
        """Serve it at every address: unix to whoever may open it, TCP to whom the list names.

        Returns:
            The addresses, as ``admin`` and ``admin_tcp``.

        """
        service = AdminService(context)
        tls = self._config.admin_tls
        addresses = {}
        for address in self._config.admin_listen:
            over_tls = tls if isinstance(address, TcpAddress) else None
            server = GrpcServer(
                address,
                "--admin-listen",
                _ADMIN_MODE,
                credentials=Certificates(over_tls).credentials() if over_tls else None,
                interceptors=[AccessInterceptor(over_tls.allow if over_tls else None)],
            )
            admin_pb2_grpc.add_AdminServicer_to_server(service, server.server)  # type: ignore[no-untyped-call]
            await self._serve(server)
            addresses["admin_tcp" if over_tls else "admin"] = str(server.address)
        self._parts.callback(service.close)
        return addresses

    async def _serve_engines(
        self, ingest: IngestService, feed: PolicyFeed, feed_service: PolicyFeedService
    ) -> GrpcServer:
        """Serve both of an engine's services on the one endpoint that it knows."""
        server = GrpcServer(self._config.listen, "--listen", _INGEST_MODE)
        server.server.add_generic_rpc_handlers((ingest.handler(), feed_service.handler()))
        await self._serve(server)
        self._parts.push_async_callback(self._drain, ingest, feed, server)
        return server

    async def _serve(self, server: GrpcServer) -> None:
        self._parts.push_async_callback(lambda: server.stop(min(_LAST_CALLS_SECONDS, self._remaining())))
        await server.start()

    def _publish(self, state_dir: Path, addresses: dict[str, str]) -> None:
        path = state_dir / _ADDRESSES
        written = path.with_suffix(".tmp")
        try:
            written.unlink(missing_ok=True)
            with open(written, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                json.dump({"pid": os.getpid(), **addresses}, file)
            written.replace(path)
        except OSError as error:
            # A full disk: the addresses are in the log, too.
            _log.warning("the addresses could not be written", path=str(path), error=str(error))
            return
        ours = identity(path)

        def remove() -> None:
            # Another agent may have taken the directory, and written its own.
            if identity(path) == ours:
                path.unlink(missing_ok=True)

        self._parts.callback(remove)

    async def _drain(self, ingest: IngestService, feed: PolicyFeed, engines: GrpcServer) -> None:
        """Take nothing new; commit and acknowledge what is in hand."""
        self._condition.phase = "draining"
        await engines.set_serving(False)
        feed.close()
        await ingest.drain(self._remaining() / 2)

    async def stop(self) -> None:
        """Stop what was started, within the drain's deadline. Idempotent."""
        self._remaining()
        self._stopping.set()
        await self._parts.aclose()

    def _render(self, accept: str) -> tuple[bytes, str]:
        if self._exposition is None:
            raise StateError("the log is being replayed; the counters are not complete yet")
        return self._exposition.render(accept)

    def _describe(self, status: AgentStatus) -> None:
        status.start_time.FromNanoseconds(self._started_unix_nano)
        status.listen_address = self._listen_address
        status.engines_expected = self._config.engines_expected
        status.messages_refused, status.last_refusal = self._refused.count, self._refused.last
        if self._losses is not None:
            status.acknowledged_entries_lost = min(self._losses.entries_lost, _MOST)
        if self._refused.count:
            status.last_refused.FromNanoseconds(self._refused.last_unix_nano)
        status.degraded = self._condition.degraded()
        if self._http is not None:
            status.metrics_address = str(self._http.address)
        if self._exporter is not None:
            export = self._exporter.status()
            status.otlp_endpoint = export.endpoint
            status.otlp_error = export.error
            status.export_cursor = export.exported
            if export.oldest_unexported_unix_nano:
                status.oldest_unexported.FromNanoseconds(export.oldest_unexported_unix_nano)
