"""The agent's own metrics since its start, in a registry of prometheus_client. Thread-safe."""

from __future__ import annotations

import platform
import sqlite3
from typing import TYPE_CHECKING, Final

import grpc
from penstock.agent.metrics.catalogue import from_agent
from penstock.agent.metrics.exposition import Family, Sample
from penstock.agent.policy.rollouts import PHASES, Rollouts
from penstock.agent.traces.export import ExportStatus
from penstock.proto import __version__
from penstock.proto.names import NANOS
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import Metric as CoreMetric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.policy.files.file_source import FileStatus
    from penstock.agent.policy.sources import SourceState

BUILD = {
    "version": __version__,
    "python_version": platform.python_version(),
    "grpc_version": grpc.__version__,
    "sqlite_version": sqlite3.sqlite_version,
}


REFUSAL_REASONS: Final = (
    "engines",
    "held",
    "invalid",
    "journal",
    "memory",
    "out_of_order",
    "silent",
    "sources",
    "streams",
)
"""Values of the label ``reason`` of refused messages. All have a series from the start, so that the first is an increase."""


def core_metric(family: Family) -> CoreMetric:
    """Return counters or gauges of the catalogue as prometheus_client's type."""
    metric = family.metric
    core = CoreMetric(metric.family, metric.help, metric.kind.value)
    for labels, value, _ in family.samples:
        core.add_sample(metric.name, dict(zip(metric.all_labels, labels, strict=True)), value)
    return core


class FamilyCollector(Collector):
    """Collects the families that *families* returns at each scrape; those without samples are left out."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterator[CoreMetric]:
        """Return them as they are now."""
        return (core_metric(family) for family in self._families() if family.samples)


def register_runtime(registry: CollectorRegistry) -> None:
    """Register prometheus_client's collectors: ``process_*``, ``python_gc_*`` and ``python_info``."""
    ProcessCollector(registry=registry)
    GCCollector(registry)
    PlatformCollector(registry)


class AgentMetrics:
    """The daemon's own metrics.

    Args:
        state_created_unix_nano: when counting began.
        engines_expected: engines that the pod should have; 0 if not configured.
        commit_queue: returns the batches that wait for their commit.
        export_backlog: returns the batches that the trace export has not passed.
        policy_files: returns how the policy files are; None if there are none.
        policy_sources: returns the states of the policy sources.
        exporting: returns how the trace export stands.
        build: versions by the names of the labels of `from_agent.BUILD`.
        runtime: registers the collectors of the process and the interpreter.
        state: returns the metrics of the state directory.
        poisoned: returns the batches that could not be counted.
        audit_trimmed: returns the entries that the audit log has lost to its limit.
        rollouts: returns what became of the policies' roll-outs.
        conditions: returns what is wrong now.

    Attributes:
        registry: all of them, for prometheus_client's writers.
        commit: seconds of commits.
        ack: seconds from a batch's arrival to its acknowledgement.
        export: seconds of span exports.

    """

    def __init__(
        self,
        state_created_unix_nano: int,
        engines_expected: int = 0,
        *,
        commit_queue: Callable[[], int] = lambda: 0,
        export_backlog: Callable[[], int] = lambda: 0,
        policy_files: Callable[[], FileStatus | None] = lambda: None,
        policy_sources: Callable[[], Sequence[SourceState]] = tuple,
        exporting: Callable[[], ExportStatus] = ExportStatus,
        build: Mapping[str, str] = BUILD,
        runtime: Callable[[CollectorRegistry], None] = register_runtime,
        state: Callable[[], Iterable[Family]] = tuple,
        poisoned: Callable[[], int] = lambda: 0,
        audit_trimmed: Callable[[], int] = lambda: 0,
        rollouts: Callable[[], Rollouts] = Rollouts,
        conditions: Callable[[], Iterable[Family]] = tuple,
    ) -> None:
        self.engines_expected = engines_expected
        # Prometheus ignores them, and 0.0.4 has them as gauges of their own.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.commit = self._histogram(from_agent.COMMIT_DURATION)
        self.ack = self._histogram(from_agent.ACK_DURATION)
        self.export = self._histogram(from_agent.EXPORT_DURATION)
        self._refused = Counter(
            from_agent.REFUSED_MESSAGES.name,
            from_agent.REFUSED_MESSAGES.help,
            from_agent.REFUSED_MESSAGES.labels,
            registry=self.registry,
        )
        for reason in REFUSAL_REASONS:
            self._refused.labels(reason)
        self._broken_streams = Counter(
            from_agent.BROKEN_STREAMS.name, from_agent.BROKEN_STREAMS.help, registry=self.registry
        )
        self._state_created = state_created_unix_nano / NANOS
        self._build = build
        self._commit_queue = commit_queue
        self._export_backlog = export_backlog
        self._policy_files = policy_files
        self._policy_sources = policy_sources
        self._exporting = exporting
        self._state = state
        self._poisoned = poisoned
        self._audit_trimmed = audit_trimmed
        self._rollouts = rollouts
        self._conditions = conditions
        self.registry.register(FamilyCollector(self._families))
        runtime(self.registry)

    def _histogram(self, metric: Metric) -> Histogram:
        buckets = [bound / metric.scale for bound in metric.buckets]
        return Histogram(metric.name, metric.help, buckets=buckets, registry=self.registry)

    def count_refused(self, reason: str) -> None:
        """Add a message or a stream of an engine that was not taken; *reason* is one of `REFUSAL_REASONS`."""
        self._refused.labels(reason).inc()

    def count_broken_stream(self) -> None:
        """Add a stream of an engine that broke off."""
        self._broken_streams.inc()

    def _families(self) -> Iterator[Family]:
        """Yield what is read at the scrape."""
        yield Family(from_agent.STATE_CREATED, [Sample((), self._state_created)])
        yield Family(from_agent.COMMIT_QUEUE, [Sample((), self._commit_queue())])
        yield Family(from_agent.EXPORT_BACKLOG, [Sample((), self._export_backlog())])
        status = self._exporting()
        yield Family(
            from_agent.POISONED, [Sample(("metrics",), self._poisoned()), Sample(("traces",), status.skipped)]
        )
        if status.endpoint:
            yield from _spans(status)
        yield Family(
            from_agent.BUILD, [Sample(tuple(self._build[name] for name in from_agent.BUILD.labels), 1)]
        )
        yield from self._state()
        yield Family(from_agent.AUDIT_TRIMMED, [Sample((), self._audit_trimmed())])
        yield from _policy_files(self._policy_files())
        yield from _sources(self._policy_sources())
        yield from _rollouts(self._rollouts())
        yield from self._conditions()


def _spans(status: ExportStatus) -> Iterator[Family]:
    yield Family(
        from_agent.SPANS,
        [
            Sample(("exported",), status.spans_exported),
            Sample(("refused",), status.spans_refused),
            Sample(("sampled_out",), status.spans_sampled_out),
        ],
    )
    yield Family(
        from_agent.GIVEN_UP,
        [Sample((reason,), status.given_up.get(reason, 0)) for reason in ("age", "count", "memory")],
    )
    if status.oldest_unexported_unix_nano:
        yield Family(from_agent.OLDEST_UNEXPORTED, [Sample((), status.oldest_unexported_unix_nano / NANOS)])


def _sources(states: Sequence[SourceState]) -> Iterator[Family]:
    if not states:
        return
    yield Family(
        from_agent.POLICY_SOURCE_UP, [Sample((each.name,), each.state == "connected") for each in states]
    )
    yield Family(
        from_agent.POLICY_SOURCE_OBJECTS,
        [
            Sample((each.name, state), count)
            for each in states
            for state, count in (("accepted", each.accepted), ("refused", len(each.refused)))
        ],
    )
    yield Family(from_agent.POLICY_SOURCE_CHANGES, [Sample((each.name,), each.changes) for each in states])


def _rollouts(rollouts: Rollouts) -> Iterator[Family]:
    yield Family(from_agent.ROLLOUT_ABORTS, [Sample((), rollouts.aborts)])
    if not rollouts.states:
        return
    yield Family(
        from_agent.ROLLOUT_PERCENT,
        [Sample((name,), state.percent) for name, state in rollouts.states.items()],
    )
    yield Family(
        from_agent.ROLLOUT_STATE,
        [
            Sample((name, phase), state.phase == phase)
            for name, state in rollouts.states.items()
            for phase in PHASES
        ],
    )


def _policy_files(status: FileStatus | None) -> Iterator[Family]:
    if status is None:
        return
    yield Family(from_agent.POLICY_FILES_VALID, [Sample((), 0.0 if status.error else 1.0)])
    yield Family(
        from_agent.POLICY_FILES_LOADS,
        [Sample(("applied",), status.applied), Sample(("refused",), status.refused)],
    )
    if status.last_success:
        yield Family(from_agent.POLICY_FILES_SUCCESS, [Sample((), status.last_success)])
