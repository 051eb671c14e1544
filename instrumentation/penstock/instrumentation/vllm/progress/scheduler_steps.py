"""The steps of a scheduler: how many there were, and since when it has been in one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Progress


class SchedulerSteps:
    """Runs on the scheduler's thread; nothing here raises. A step costs three readings of the clock at most.

    vLLM hands the results in in the order of the steps, so that the result of the last step ends all.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._start_ns = 0
        self._last: Any = None

    def on_started(self) -> None:
        """Record that the scheduler puts a step together."""
        if not self._start_ns:
            self._start_ns = time.time_ns()

    def on_scheduled(self, output: Any) -> None:
        """Record the step that was put together; one without a token is none."""
        if output.total_num_scheduled_tokens:
            self._steps += 1
            self._last = output
        elif self._last is None:
            self._start_ns = 0

    def on_updated(self, output: Any) -> None:
        """Record that the result of the step with that scheduler's *output* is applied."""
        if output is self._last:
            self._last, self._start_ns = None, 0
        elif self._start_ns and output.total_num_scheduled_tokens:
            # Another step is under way behind it.
            self._start_ns = time.time_ns()

    def fill(self, progress: Progress) -> None:
        """Add the steps. Any thread."""
        progress.steps = self._steps
        progress.step_start_time_unix_nano = self._start_ns
