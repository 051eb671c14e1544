"""What the agent measures about itself since it started. Thread-safe."""

from __future__ import annotations

import platform
import sqlite3
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import grpc
from penstock.agent.metrics import catalogue as c
from penstock.agent.metrics.family import Distribution, Family, Sample
from penstock.agent.metrics.process import process_use
from penstock.agent.metrics.series import Row, Series
from penstock.agent.traces.export import ExportStatus
from penstock.proto import __version__
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.agent.metrics.model import Metric
    from penstock.agent.metrics.process import ProcessUse
    from penstock.agent.policy.files.file_source import FileStatus

BUILD = {
    "version": __version__,
    "python_version": platform.python_version(),
    "grpc_version": grpc.__version__,
    "sqlite_version": sqlite3.sqlite_version,
}


class Latency:
    """A histogram of durations."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._lock = threading.Lock()
        self._series = Series(metric)

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        with self._lock:
            self._series.add((), round(seconds * NANOS), 0)

    def rows(self) -> list[Row]:
        """Return a copy; empty before the first duration."""
        with self._lock:
            return self._series.rows()


_REASONS = ("engines", "held", "invalid", "journal", "memory", "out_of_order", "silent", "sources", "streams")


class RefusalCounter:
    """Messages and streams that were not taken, by reason; the reasons are words of ours.

    All of them are there from the start: a series that begins with its first refusal shows no increase.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))

    def count(self, reason: str) -> None:
        """Add one."""
        with self._lock:
            self._counts[reason] += 1

    def samples(self) -> list[Sample]:
        """Return a copy."""
        with self._lock:
            return [Sample((reason,), count) for reason, count in sorted(self._counts.items())]


class AgentMetrics:
    """The daemon's own metrics.

    Args:
        state_created_unix_nano: when counting began.
        engines_expected: engines that the pod should have; 0 if not configured.
        commit_queue: returns the batches that wait for their commit.
        export_backlog: returns the batches that the trace export has not passed.
        policy_files: returns how the policy files are; None if there are none.
        exporting: returns how the trace export stands.
        process: returns what the process uses.
        build: versions by the names of the labels of `c.BUILD`.
        started: unix seconds; now if not given.
        state: returns the metrics of the state directory.
        poisoned: returns the batches that could not be counted.
        audit_trimmed: returns the entries that the audit log has lost to its limit.

    Attributes:
        commit: durations of commits.
        ack: durations from a batch's arrival to its acknowledgement.
        export: durations of span exports.
        refused: messages and streams of engines that were not taken.
        broken_streams: streams of engines that broke off; counted on the loop.

    """

    def __init__(
        self,
        state_created_unix_nano: int,
        engines_expected: int = 0,
        *,
        commit_queue: Callable[[], int] = lambda: 0,
        export_backlog: Callable[[], int] = lambda: 0,
        policy_files: Callable[[], FileStatus | None] = lambda: None,
        exporting: Callable[[], ExportStatus] = ExportStatus,
        process: Callable[[], ProcessUse] = process_use,
        build: Mapping[str, str] = BUILD,
        started: float | None = None,
        state: Callable[[], Iterable[Family]] = tuple,
        poisoned: Callable[[], int] = lambda: 0,
        audit_trimmed: Callable[[], int] = lambda: 0,
    ) -> None:
        self.engines_expected = engines_expected
        self.commit = Latency(c.COMMIT_DURATION)
        self.ack = Latency(c.ACK_DURATION)
        self.export = Latency(c.EXPORT_DURATION)
        self.refused = RefusalCounter()
        self.broken_streams = 0
        self._state_created = state_created_unix_nano / NANOS
        self._process = process
        self._build = build
        self._started = time.time() if started is None else started
        self._commit_queue = commit_queue
        self._export_backlog = export_backlog
        self._policy_files = policy_files
        self._exporting = exporting
        self._state = state
        self._poisoned = poisoned
        self._audit_trimmed = audit_trimmed

    def count_broken_stream(self) -> None:
        """Add one."""
        self.broken_streams += 1

    def families(self) -> list[Family]:
        """Return all of them as they are now."""
        return [
            Family(c.STATE_CREATED, [Sample((), self._state_created)]),
            Family(c.COMMIT_QUEUE, [Sample((), self._commit_queue())]),
            Family(c.EXPORT_BACKLOG, [Sample((), self._export_backlog())]),
            Family(c.REFUSED_MESSAGES, self.refused.samples()),
            Family(c.BROKEN_STREAMS, [Sample((), self.broken_streams)]),
            *self._durations(),
            Family(
                c.POISONED,
                [Sample(("metrics",), self._poisoned()), Sample(("traces",), self._exporting().skipped)],
            ),
            *self._spans(),
            *self._resources(),
            *self._state(),
            Family(c.AUDIT_TRIMMED, [Sample((), self._audit_trimmed())]),
            *_policy_files(self._policy_files()),
        ]

    def _durations(self) -> Iterator[Family]:
        for latency in (self.commit, self.ack, self.export):
            yield Family(
                latency.metric,
                distributions=[Distribution((), row.total / NANOS, row.counts, {}) for row in latency.rows()],
            )

    def _spans(self) -> Iterator[Family]:
        status = self._exporting()
        if not status.endpoint:
            return
        yield Family(
            c.SPANS,
            [
                Sample(("exported",), status.spans_exported),
                Sample(("refused",), status.spans_refused),
                Sample(("sampled_out",), status.spans_sampled_out),
            ],
        )
        yield Family(
            c.GIVEN_UP,
            [Sample((reason,), status.given_up.get(reason, 0)) for reason in ("age", "count", "memory")],
        )
        if status.oldest_unexported_unix_nano:
            yield Family(c.OLDEST_UNEXPORTED, [Sample((), status.oldest_unexported_unix_nano / NANOS)])

    def _resources(self) -> Iterator[Family]:
        use = self._process()
        for metric, value in (
            (c.AGENT_START, self._started),
            (c.AGENT_CPU, use.cpu_seconds),
            (c.AGENT_MEMORY, use.resident_bytes),
            (c.AGENT_FDS, use.open_fds),
        ):
            if value is not None:
                yield Family(metric, [Sample((), value)])
        yield Family(c.BUILD, [Sample(tuple(self._build[name] for name in c.BUILD.labels), 1)])


def _policy_files(status: FileStatus | None) -> Iterator[Family]:
    if status is None:
        return
    yield Family(c.POLICY_FILES_VALID, [Sample((), 0.0 if status.error else 1.0)])
    yield Family(
        c.POLICY_FILES_LOADS, [Sample(("applied",), status.applied), Sample(("refused",), status.refused)]
    )
    if status.last_success:
        yield Family(c.POLICY_FILES_SUCCESS, [Sample((), status.last_success)])
