"""The daemon: starts its parts in order and stops them in reverse."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog
from penstock.agent.admin.calls import diagnoses
from penstock.agent.admin.lookups import AgentContext, Judge, Retirement, compared_counts, keep_sampling
from penstock.agent.daemon.config import shown_config
from penstock.agent.daemon.distributed_policies import DistributedPolicies, distribute_policies
from penstock.agent.daemon.drained import drained
from penstock.agent.daemon.health import Health
from penstock.agent.daemon.housekeeping import Housekeeper
from penstock.agent.daemon.opened_state import open_state, restore_sources
from penstock.agent.daemon.registration import register_agent
from penstock.agent.daemon.servers import DrainDeadline, Servers, remove_addresses, write_addresses
from penstock.agent.daemon.status_report import StateGauges, StatusReport, condition_families
from penstock.agent.errors import StateError
from penstock.agent.ingest import Admission, IngestService, LossDetector, SourceAdmission
from penstock.agent.metrics import AgentMetrics, Exemplars, Gatherer
from penstock.agent.policy.distribution import PolicyFeed, PolicyFeedService, PolicySources, SampleRatios
from penstock.agent.policy.rollouts import RolloutLeader
from penstock.agent.server.grpc_server import GrpcServer, raise_file_limit
from penstock.agent.server.http_server import Drained, HttpServer
from penstock.agent.sources import EngineOwners, Registry
from penstock.agent.stalls import StallWatch
from penstock.agent.state import StateDirectory
from penstock.agent.traces.export import probe_endpoint
from penstock.agent.traces.export.exporter import TraceExporter
from penstock.proto import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from penstock.agent.daemon.config import Config
    from penstock.agent.daemon.opened_state import CountedLog, OpenedState
    from penstock.agent.journal import Journal
    from penstock.agent.model import EngineKey

_log = structlog.get_logger(__name__)

# Part of the drain's deadline, for what follows the export.
_AFTER_EXPORT_SECONDS = 2.0


class Daemon:
    """All parts of one agent; each registers its own stop when it starts.

    Attributes:
        fatal: resolves to the error after which the agent cannot continue.

    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._parts = AsyncExitStack()
        self._health = Health()
        self._deadline = DrainDeadline(config.drain_deadline)
        self._stopping = threading.Event()
        self._judge = Judge()
        self.fatal: asyncio.Future[StateError] = asyncio.get_running_loop().create_future()
        self._gatherer: Gatherer | None = None
        self._agent: AgentContext | None = None
        self._servers = Servers(config, self._parts, self._deadline)
        self._report = StatusReport(config, self._health)

    async def start(self) -> None:
        """Start all parts; returns when engines can connect.

        Raises:
            PenstockError: a part cannot start; :meth:`stop` undoes the rest.

        """
        raise_file_limit()
        directory = self._own_directory()
        http = self._report.http = await self._start_http()
        log, stored = await self._open_state(directory)
        owners = EngineOwners(self._config.source_grace)
        policies = await distribute_policies(stored, owners, self._config, self._parts)
        self._health.sources = policies.sources
        registry = _registry(log)
        stalls = StallWatch(registry.sources, time.time)
        rollouts = self._lead_rollouts(log, policies)
        exemplars, metrics = Exemplars(), self._measure(directory, log, policies, rollouts)
        self._report.exporter = self._start_export(
            log.journal, registry, policies, exemplars, metrics.export.observe
        )
        self._gatherer = _gather(log, policies, registry, exemplars, metrics, stalls)
        known = log.aggregator.known
        admission = Admission(lambda: {*known(), *registry.connected_engines()}, self._config.memory_limit)
        ingest = self._make_ingest(log, registry, owners, policies, metrics, admission)
        retirement = self._make_retirement(log, registry, policies)
        agent = self._admin_context(directory, log, registry, policies, retirement, rollouts, stalls)
        self._agent = agent
        admin = await self._servers.serve_admin(agent)
        self._register(admin)
        self._end_pauses(registry, policies)
        engines = await self._servers.serve_engines(
            ingest, PolicyFeedService(policies.feed, metrics.count_refused)
        )
        self._parts.push_async_callback(self._drain, ingest, policies.feed, engines)
        self._start_upkeep(
            directory,
            policies,
            admission,
            retirement.keep_retiring(),
            stalls.keep_looking(),
            diagnoses.keep_judging(agent),
            keep_sampling(agent),
        )
        self._report.listen_address = str(engines.address)
        if shortage := admission.look_at_memory():
            self._health.memory_short = shortage
            _log.error("no engine is taken in", reason=shortage)
        self._health.phase = "serving"
        addresses = {"listen": str(engines.address), **admin, "http": str(http.address)}
        self._parts.callback(write_addresses(directory.path, addresses))
        _log.info("agent ready", version=__version__, pid=os.getpid(), replayed=log.replayed, **addresses)

    def _register(self, admin: Mapping[str, str]) -> None:
        """Keep the agent in the registry where relays look for it, by its TCP address of *admin*."""
        if self._config.registration is not None:
            self._health.registration = register_agent(
                self._config.registration, self._config.nats, admin["admin_tcp"], self._parts
            )

    def _own_directory(self) -> StateDirectory:
        directory = self._health.place = StateDirectory(self._config.state_dir, self._config.state_limit)
        self._parts.callback(directory.release)
        remove_addresses(directory.path)
        return directory

    async def _open_state(self, directory: StateDirectory) -> OpenedState:
        """Open the databases and keep saving the counters."""
        opened = await open_state(self._config, directory)
        log, policies = opened
        self._health.journal, self._health.policies = log.journal, policies.database
        self._parts.push_async_callback(log.journal.close)
        self._parts.callback(policies.database.close)
        self._parts.callback(log.checkpoint.save)
        saving = asyncio.ensure_future(log.checkpoint.keep_saving())
        self._parts.callback(saving.cancel)
        return opened

    async def _start_http(self) -> HttpServer:
        """Serve health and metrics; health answers before the log is replayed."""
        http = HttpServer(
            self._config.http,
            self._render,
            self._health.health,
            self._health.readiness,
            self._health.degraded,
            self._drained,
        )
        self._parts.push_async_callback(http.stop)
        await http.start()
        return http

    def _measure(
        self,
        directory: StateDirectory,
        log: CountedLog,
        policies: DistributedPolicies,
        rollouts: RolloutLeader,
    ) -> AgentMetrics:
        """Return the agent's own metrics; the export, which starts after them, is read at each scrape."""
        journal, checkpoint = log.journal, log.checkpoint
        exporting = self._report.export_status
        metrics = AgentMetrics(
            journal.created_unix_nano,
            self._config.engines_expected,
            commit_queue=lambda: journal.depth,
            export_backlog=lambda: max(0, checkpoint.at - exporting().position),
            policy_files=policies.file_status,
            policy_sources=policies.sources.states if policies.sources is not None else tuple,
            exporting=exporting,
            state=StateGauges(directory, journal, self._health).families,
            poisoned=lambda: checkpoint.poisoned,
            audit_trimmed=lambda: policies.stored.database.audit_trimmed,
            rollouts=rollouts.summary,
            conditions=lambda: condition_families(self._judge.latest),
        )
        journal.observe_commits(metrics.commit.observe)
        return metrics

    def _make_ingest(
        self,
        log: CountedLog,
        registry: Registry,
        owners: EngineOwners,
        policies: DistributedPolicies,
        metrics: AgentMetrics,
        admission: Admission,
    ) -> IngestService:
        """Return the ingest service; the sources of an earlier life may reconnect."""
        journal, aggregator, grace = log.journal, log.aggregator, self._config.source_grace
        known = aggregator.known()
        losses = self._report.losses = LossDetector(journal, grace)
        self._parts.push_async_callback(losses.stop)
        restore_sources(journal, registry, losses, owners, known=known, grace=grace)
        ingest = IngestService(
            journal,
            registry,
            policies.stored.pauses,
            policies.stored.orders,
            losses,
            metrics.ack.observe,
            source_admission=SourceAdmission(journal.source, owners, admission),
            count_refused=metrics.count_refused,
            count_broken=metrics.count_broken_stream,
        )
        self._report.violations = ingest.refused
        return ingest

    def _make_retirement(
        self, log: CountedLog, registry: Registry, policies: DistributedPolicies
    ) -> Retirement:
        return Retirement(
            log.journal,
            registry,
            log.aggregator,
            policies.feed,
            policies.stored.database,
            after=self._config.retire_after,
        )

    def _start_export(
        self,
        journal: Journal,
        registry: Registry,
        policies: DistributedPolicies,
        exemplars: Exemplars,
        observe: Callable[[float], None],
    ) -> TraceExporter:
        for sentence in self._config.export.unused:
            _log.warning("an OTEL_ variable is set that has no effect on the agent", reason=sentence)
        exporter = TraceExporter(
            journal,
            self._config.export,
            on_exported=exemplars.note,
            observe=observe,
            sample_ratio=SampleRatios(policies.stored.store, policies.feed),
            described=registry.roles.described,
            policies=PolicySources(policies.stored.store, policies.feed),
        )
        exporter.start()
        self._parts.push_async_callback(
            lambda: asyncio.to_thread(
                exporter.stop, max(0.1, self._deadline.remaining() - _AFTER_EXPORT_SECONDS)
            )
        )
        return exporter

    def _admin_context(
        self,
        directory: StateDirectory,
        log: CountedLog,
        registry: Registry,
        policies: DistributedPolicies,
        retirement: Retirement,
        rollouts: RolloutLeader,
        stalls: StallWatch,
    ) -> AgentContext:
        """Return what the admin service reads and changes."""
        return AgentContext(
            journal=log.journal,
            registry=registry,
            aggregator=log.aggregator,
            store=policies.stored.store,
            pauses=policies.stored.pauses,
            orders=policies.stored.orders,
            feed=policies.feed,
            retirement=retirement,
            sources=policies.sources,
            rollouts=rollouts,
            state_dir=directory.path,
            stopping=self._stopping,
            is_awaited=self._report.is_awaited,
            try_backend=lambda: probe_endpoint(self._config.export),
            pages={
                "metrics.txt": lambda: self._render("text/plain")[0],
                "configuration.json": lambda: shown_config(self._config),
            },
            statuses=(self._report.describe, policies.describe),
            stalls=lambda: stalls.now,
            ended_stalls=lambda: stalls.ended.found,
            look_seconds=lambda: stalls.look_seconds,
            judge=self._judge,
        )

    def _lead_rollouts(self, log: CountedLog, policies: DistributedPolicies) -> RolloutLeader:
        """Start to lead the roll-outs of the agent's own policies."""
        leader = RolloutLeader(
            policies.stored.store,
            lambda: [subscriber.target for subscriber in policies.feed.subscribers()],
            lambda: compared_counts(log.aggregator),
            refusing=policies.feed.refusing,
        )
        leading = asyncio.ensure_future(leader.keep_leading())
        self._parts.callback(leading.cancel)
        return leader

    def _end_pauses(self, registry: Registry, policies: DistributedPolicies) -> None:
        """Start to end each pause at its time, before an engine can learn of one that is over."""

        def engines() -> set[EngineKey]:
            known = {view.key for view in registry.engines()}
            return known | {subscriber.target.key for subscriber in policies.feed.subscribers()}

        ending = asyncio.ensure_future(policies.stored.pauses.keep_ending(engines))
        self._parts.callback(ending.cancel)

    def _start_upkeep(
        self,
        directory: StateDirectory,
        policies: DistributedPolicies,
        admission: Admission,
        *work: Coroutine[None, None, None],
    ) -> None:
        """Start what runs beside the servers: *work*, which never ends, and housekeeping."""
        for each in work:
            self._parts.callback(asyncio.ensure_future(each).cancel)
        house = Housekeeper(
            directory, policies.stored.database, self._health, admission.look_at_memory, self.fatal
        )
        self._parts.push_async_callback(house.stop)

    async def _drain(self, ingest: IngestService, feed: PolicyFeed, engines: GrpcServer) -> None:
        """Refuse new messages; commit and acknowledge those that were received."""
        self._health.phase = "draining"
        await engines.set_serving(False)
        feed.close()
        await ingest.drain(self._deadline.remaining() / 2)

    async def stop(self) -> None:
        """Stop all parts within the drain's deadline. Idempotent."""
        self._deadline.start()
        self._stopping.set()
        await self._parts.aclose()

    def _render(self, accept: str) -> tuple[bytes, str]:
        if self._gatherer is None:
            raise StateError("the log is being replayed; the counters are not complete yet")
        return self._gatherer.render(accept)

    async def _drained(self, name: str) -> Drained:
        if self._agent is None:
            raise StateError("the agent is starting; what engines hold is not known yet")
        return await drained(self._agent, name)


def _registry(log: CountedLog) -> Registry:
    """Return the sources, whose watermarks follow the commits of the log."""
    registry = Registry(time.time_ns, log.aggregator.account)
    log.journal.on_commit(lambda _, source, contents: registry.committed(source.epoch, contents.batch))
    return registry


def _gather(
    log: CountedLog,
    policies: DistributedPolicies,
    registry: Registry,
    exemplars: Exemplars,
    metrics: AgentMetrics,
    stalls: StallWatch,
) -> Gatherer:
    """Return what renders ``/metrics``."""
    return Gatherer(
        log.aggregator,
        registry.sources,
        exemplars,
        metrics,
        wanted=policies.feed.wanted,
        pause_ends=policies.stored.pauses.ends_unix_nano,
        stalls=lambda: stalls.now,
        look_seconds=lambda: stalls.look_seconds,
    )
