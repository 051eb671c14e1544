"""What the agent measures about itself since it started. Thread-safe."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.agent.metrics import catalogue as c
from penstock.agent.metrics.series import Row, Series
from penstock.agent.metrics.spec import NANO

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.metrics.spec import Metric
    from penstock.agent.policy.files.source import FileStatus


class Latency:
    """A histogram of durations."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._lock = threading.Lock()
        self._series = Series(metric)

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        with self._lock:
            self._series.add((), round(seconds * NANO), 0)

    def rows(self) -> list[Row]:
        """Return a copy; empty before the first duration."""
        with self._lock:
            return self._series.rows()


class AgentMetrics:
    """The daemon's own metrics.

    Args:
        state_created_unix_nano: when counting began.
        engines_expected: engines that the pod should have; 0 if not configured.
        commit_queue: returns the batches that wait for their commit.
        export_backlog: returns the batches that the trace export has not passed.
        policy_files: returns how the policy files are; None if there are none.

    Attributes:
        commit: durations of commits.
        ack: durations from a batch's arrival to its acknowledgement.
        export: durations of span exports.

    """

    def __init__(
        self,
        state_created_unix_nano: int,
        engines_expected: int = 0,
        *,
        commit_queue: Callable[[], int] = lambda: 0,
        export_backlog: Callable[[], int] = lambda: 0,
        policy_files: Callable[[], FileStatus | None] = lambda: None,
    ) -> None:
        self.state_created_unix_nano = state_created_unix_nano
        self.engines_expected = engines_expected
        self.commit_queue = commit_queue
        self.export_backlog = export_backlog
        self.policy_files = policy_files
        self.commit = Latency(c.COMMIT_DURATION)
        self.ack = Latency(c.ACK_DURATION)
        self.export = Latency(c.EXPORT_DURATION)
