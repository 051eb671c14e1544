"""The peer in tracing: ``opentelemetry-sdk`` in the sender, and an OTLP/gRPC server that parses spans, counts them and forgets them.

Or keeps them: as durable as our journal, a call is answered when its body is committed to SQLite (a write-ahead log, ``synchronous = NORMAL``).

``python -m benchmarks.load.otlp_peer [DIRECTORY]`` is the server, which keeps spans if it has a directory; it prints its address and serves until
standard input ends. A line on standard input asks how many spans there were, and what it has used.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ATTRIBUTES: Final[Mapping[str, str | int]] = {
    "penstock.channel": "kv", "penstock.connector": "NixlConnector", "penstock.peer": "10.0.0.7:5600",
    "penstock.bytes": 393_216, "gen_ai.request.id": "chatcmpl-4f1d0000-0a1b2c3d",
}  # fmt: skip
"""The content of one Penstock sample as span attributes."""


SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"


class Used(NamedTuple):
    """A server's counts: spans received, CPU seconds, bytes of memory, bytes on disk."""

    spans: int
    cpu_seconds: float
    memory: int
    disk: int


class Server:
    """Counts spans, and stores them if it has a *directory*."""

    def __init__(self, directory: str) -> None:
        self._spans = 0
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        if directory:
            self._database = sqlite3.connect(Path(directory) / "spans.db", check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("CREATE TABLE calls (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def export(self, body: bytes, _context: Any) -> bytes:
        """Handle one export call."""
        request = ExportTraceServiceRequest.FromString(body)
        spans = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        with self._lock:
            self._spans += spans
            if self._database is not None:
                with self._database:
                    self._database.execute("INSERT INTO calls (body) VALUES (?)", (body,))
        return ExportTraceServiceResponse().SerializeToString()

    def used(self) -> Used:
        """Return it."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        disk = 0
        if self._database is not None:
            with self._lock:
                (count,), (size,) = (
                    self._database.execute(f"PRAGMA {word}").fetchone()
                    for word in ("page_count", "page_size")
                )
            disk = count * size
        return Used(self._spans, time.process_time(), pages * os.sysconf("SC_PAGE_SIZE"), disk)


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server."""

    address: str
    process: subprocess.Popen[str]

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{self.address}"

    def used(self) -> Used:
        """Return the server's present counts."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        spans, seconds, memory, disk = self.process.stdout.readline().split()
        return Used(int(spans), float(seconds), int(memory), int(disk))


@contextmanager
def running_peer(*, keeps: bool = False) -> Iterator[Peer]:
    """Run a server in a process of its own; it ends with the context, and with us. If it *keeps* spans, then where an agent's state would be."""
    command = [sys.executable, "-m", "benchmarks.load.otlp_peer"]
    with ExitStack() as parts:
        if keeps:
            command.append(parts.enter_context(tempfile.TemporaryDirectory(prefix="penstock-peer-")))
        process = parts.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError("The OTLP server of the comparison did not start; its error is above.")
            yield Peer(address, process)
        finally:
            process.kill()


def provider(exporter: SpanExporter, *, queue: int, batch: int, delay: float) -> TracerProvider:
    """Return a provider with a batch processor.

    Args:
        queue: spans that it holds.
        batch: spans that make it export.
        delay: seconds after which it exports fewer.

    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    made = TracerProvider(resource=Resource({"service.name": "vllm-decode"}), shutdown_on_exit=False)
    made.add_span_processor(
        BatchSpanProcessor(
            exporter, max_queue_size=queue, max_export_batch_size=batch, schedule_delay_millis=delay * 1e3
        )
    )
    return made


def grpc_exporter(peer: Peer) -> SpanExporter:
    """Return the SDK's own exporter to *peer*."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=peer.endpoint, insecure=True)


def main() -> None:
    """Serve."""
    served = Server(sys.argv[1] if len(sys.argv) > 1 else "")
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    handlers: dict[str, Any] = {"Export": grpc.unary_unary_rpc_method_handler(served.export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    for _ in sys.stdin:
        print(*served.used(), flush=True)
    server.stop(None).wait(5)


if __name__ == "__main__":
    main()
