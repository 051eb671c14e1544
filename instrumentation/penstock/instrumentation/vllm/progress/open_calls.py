"""The call of vLLM into one connector that has not returned, and the steps that the connector was given."""

from __future__ import annotations

import itertools
import time
import weakref
from typing import TYPE_CHECKING, Final, cast

from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.progress.connector_threads import connector_threads
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.proto.v1.common_pb2 import Channel
    from penstock.proto.v1.snapshot_pb2 import Snapshot

OPEN_NS: Final = NANOS
"""Nanoseconds after which a call is in the snapshot: a good one has ended long before."""

_numbers = itertools.count()


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
        name, own = f"calls.{next(_numbers)}", weakref.ref(self)

        def fill(snapshot: Snapshot) -> None:
            found = own()
            if found is None:
                runtime.snapshots.remove(name)
            else:
                found.fill(snapshot)

        runtime.snapshots.add(name, fill)
        connector_threads.report()

    def begin(self, name: str) -> None:
        """Record that vLLM calls the connector's method of that *name*. Costs 100 ns."""
        self._name, self._start_ns = name, time.time_ns()

    def end(self) -> None:
        """Record that the call has returned."""
        self._start_ns = 0

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
