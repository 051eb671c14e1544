"""The threads of connectors: which have lived in this process, and which of them have ended."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Snapshot

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
