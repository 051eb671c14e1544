"""What goes on in this process now: counts, calls that have not returned, threads. A reader sees by it what does not go on.

How many requests came, how many of them were to load KV, and how many of these loaded none. The steps of a scheduler, and since
when it has been in one. The call of vLLM into a connector that has not returned. The threads of connectors that have lived in this
process, and which of them have ended.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.instrumentation.runtime import runtime
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.common_pb2 import Channel
    from penstock.proto.v1.snapshot_pb2 import Progress, SchedulerQueue, Snapshot

NAMES: Final = frozenset(
    {
        "ec-mooncake-control",
        "ec-mooncake-ready",
        "ec-mooncake-transfer",
        "mooncake_bootstrap_server",
        "moriio-notify-listener",
        "moriio-write-worker",
        "nixl-push-writer",
        "nixl_handshake_listener",
        "penstock-ec-fetcher",
        "penstock-ec-server",
        "vllm-mooncake-sender",
        "vllm-moriio-handshake-initiator",
        "vllm-nixl-handshake-initiator",
    }
)
"""Threads that live as long as their connector, by vLLM's names and ours."""

# A pool appends the number of the thread.
_NUMBER: Final = re.compile(r"_\d+$")
OPEN_NS: Final = NANOS
"""Nanoseconds after which a call is in the snapshot: a good one has ended long before."""


class ConnectorThreads:
    """The connectors' threads of this process. All methods but :meth:`report` run on the exporter's thread."""

    def __init__(self) -> None:
        self._ended_ns: dict[str, int] = {}

    def report(self) -> None:
        """Add the threads to the snapshot. Idempotent; from any thread."""
        runtime.snapshots.add("connector_threads", self.fill)

    def fill(self, snapshot: Snapshot) -> None:
        """Add each name of :data:`NAMES` that has had a thread."""
        alive = Counter(
            name
            for thread in threading.enumerate()
            if (name := _NUMBER.sub("", thread.name)) in NAMES and thread.is_alive()
        )
        for name in alive:
            self._ended_ns[name] = 0
        for name, ended_ns in self._ended_ns.items():
            if not alive[name] and not ended_ns:
                self._ended_ns[name] = time.time_ns()
            snapshot.progress.threads.add(
                name=name, alive=alive[name], ended_time_unix_nano=self._ended_ns[name]
            )


connector_threads = ConnectorThreads()


class ConnectorCalls:
    """The calls into one connector of a worker; vLLM makes them one after the other, on one thread.

    Attributes:
        steps: steps that the connector was given.

    """

    def __init__(self, connector: str, rank: int, channel: int) -> None:
        """Observe a connector by its class's name; *channel* is a ``CHANNEL_*``. The snapshot has it while it lives."""
        self.steps = 0
        self._connector = connector
        self._rank = rank
        self._channel = channel
        self._name = ""
        self._start_ns = 0
        runtime.snapshots.add_living("calls", self)
        connector_threads.report()

    def begin(self, name: str) -> None:
        """Record that vLLM calls the connector's method of that *name*. Costs 100 ns."""
        self._name, self._start_ns = name, time.time_ns()

    def end(self) -> None:
        """Record that the call has returned."""
        self._start_ns = 0

    @property
    def began_ns(self) -> int:
        """When the call began that has not returned, wall clock in nanoseconds; 0 without one."""
        return self._start_ns

    def fill(self, snapshot: Snapshot) -> None:
        """Add the steps, and the call if it has lasted for :data:`OPEN_NS`. On the exporter's thread."""
        progress = snapshot.progress
        progress.steps = max(progress.steps, self.steps)
        name, start_ns = self._name, self._start_ns
        if start_ns and time.time_ns() - start_ns >= OPEN_NS:
            progress.calls.add(
                name=name,
                connector=self._connector,
                channel=cast("Channel", self._channel),
                rank=self._rank,
                start_time_unix_nano=start_ns,
            )


@dataclass(slots=True)
class RequestCounts:
    """Counts since the process began, without the time of a pause; the scheduler's thread changes them.

    Attributes:
        requests: requests that arrived.
        to_load: those whose ``kv_transfer_params`` say that another engine has computed the prompt.
        unloaded: of these, those that ended without a load that was begun, refused or failed.

    """

    requests: int = 0
    to_load: int = 0
    unloaded: int = 0

    def on_arrived(self, *, to_load: bool) -> None:
        """Count a request."""
        self.requests += 1
        self.to_load += to_load

    def fill(self, progress: Progress) -> None:
        """Add the counts. Any thread."""
        progress.requests = self.requests
        progress.requests_to_load = self.to_load
        progress.unloaded_requests = self.unloaded


class SchedulerSteps:
    """Runs on the scheduler's thread; nothing here raises. A step costs three readings of the clock at most.

    vLLM hands the results in in the order of the steps, so that the result of the last step ends all. A step that failed and after which
    the engine goes on (``--enable-fault-tolerance``) has none: it ends when vLLM drops its output.

    Attributes:
        tokens: of the last step that scheduled any.

    """

    def __init__(
        self, counts: Callable[[], tuple[int, int]] = lambda: (0, 0), *, outlives_failures: bool = False
    ) -> None:
        """Count steps; *counts* returns how many requests run and wait; *outlives_failures*: the engine goes on after a failed step."""
        self._counts = counts
        self._outlives_failures = outlives_failures
        self._steps = 0
        self._start_ns = 0
        # The output of the last step, or a weak reference to it in an engine that may drop it.
        self._last: Any = None
        self.tokens = 0
        self._scheduled_ns = 0
        self._empty = (0, 0)

    def on_started(self) -> None:
        """Record that the scheduler puts a step together."""
        if self._outlives_failures and self._is_dropped():
            self._last, self._start_ns = None, 0
        if not self._start_ns:
            self._start_ns = time.time_ns()

    def _is_dropped(self) -> bool:
        last = self._last
        return self._outlives_failures and last is not None and last() is None

    def on_scheduled(self, output: Any) -> None:
        """Record the step that was put together; one without a token is none."""
        tokens = output.total_num_scheduled_tokens
        if tokens:
            self._steps += 1
            self._last = weakref.ref(output) if self._outlives_failures else output
            self.tokens = tokens
            # When it began, or the result before it came: vLLM goes on at once.
            self._scheduled_ns = self._start_ns
            return
        if self._last is None:
            self._start_ns = 0
        if any(self._counts()):
            # Empty since so many steps.
            since, empty = self._empty
            self._empty = self._steps, 1 + (empty if since == self._steps else 0)

    def on_updated(self, output: Any) -> None:
        """Record that the result of the step with that scheduler's *output* is applied."""
        last = self._last
        if last is output or (self._outlives_failures and last is not None and last() is output):
            self._last, self._start_ns = None, 0
        elif self._start_ns and output.total_num_scheduled_tokens:
            # Another step is under way behind it.
            self._start_ns = time.time_ns()

    def fill(self, progress: Progress) -> None:
        """Add the steps. Any thread."""
        progress.steps = self._steps
        progress.step_start_time_unix_nano = 0 if self._is_dropped() else self._start_ns

    def fill_queue(self, queue: SchedulerQueue) -> None:
        """Add the last step, and the empty ones since. Any thread."""
        queue.last_step_time_unix_nano = self._scheduled_ns
        queue.last_step_tokens = self.tokens
        since, empty = self._empty
        queue.empty_steps = empty if since == self._steps else 0
