"""The peer in tracing: ``opentelemetry-sdk`` in the sender, and an OTLP/gRPC server that parses spans, counts them and forgets them.

``python -m benchmarks.otlp_peer`` is the server; it prints its address and serves until standard input ends. A line on standard
input asks how many spans there were, and how many seconds of CPU it has used.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ATTRIBUTES: Final[Mapping[str, str | int]] = {
    "penstock.channel": "kv", "penstock.connector": "NixlConnector", "penstock.peer": "10.0.0.7:5600",
    "penstock.bytes": 393_216, "gen_ai.request.id": "chatcmpl-4f1d0000-0a1b2c3d",
}  # fmt: skip
"""What one of our samples tells, as attributes of a span."""


class Server(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts."""

    def __init__(self) -> None:
        self.spans = 0

    def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802  (the servicer's name)
        """Take one call."""
        self.spans += sum(
            len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans
        )
        return trace_service_pb2.ExportTraceServiceResponse()


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server."""

    address: str
    process: subprocess.Popen[str]

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{self.address}"

    def told(self) -> tuple[int, float]:
        """Return how many spans have come, and the CPU seconds that the server has used."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        spans, seconds = self.process.stdout.readline().split()
        return int(spans), float(seconds)


@contextmanager
def running_peer() -> Iterator[Peer]:
    """Run a server in a process of its own; it ends with the context, and with us."""
    command = [sys.executable, "-m", "benchmarks.otlp_peer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
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
    served = Server()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(served, server)  # type: ignore[no-untyped-call]
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    for _ in sys.stdin:
        print(served.spans, time.process_time(), flush=True)
    server.stop(None).wait(5)


if __name__ == "__main__":
    main()
