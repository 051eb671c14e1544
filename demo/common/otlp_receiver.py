"""A small trace backend: receives OTLP over gRPC and keeps spans in memory."""

from __future__ import annotations

import threading
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

# Spans kept; the demo makes some dozens, but KEEP=1 may run for long.
_MOST_SPANS = 20_000


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it arrived; ids in hex, times in nanoseconds since the epoch.

    Attributes:
        parent_id: empty for a root.
        links: span ids.
        error: whether its status is ERROR.

    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start: int
    end: int
    error: bool
    attributes: Mapping[str, Any]
    links: tuple[str, ...]


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """The backend; :meth:`start` makes it listen on a free port."""

    def __init__(self, port: int = 0) -> None:
        """Take a port; 0 for a free one."""
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def start(self) -> None:
        """Listen."""
        self._server.start()

    def stop(self) -> None:
        """Stop listening; what arrived stays."""
        self._server.stop(grace=None).wait(5)

    def spans(self, trace_id: str = "") -> list[Span]:
        """Return the spans so far, by start; of one trace, if it is given."""
        with self._lock:
            found = [span for span in self._spans if trace_id in ("", span.trace_id)]
        return sorted(found, key=lambda span: span.start)

    def Export(  # noqa: N802  (the servicer's name)
        self, request: trace_service_pb2.ExportTraceServiceRequest, _context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Handle one export call."""
        with self._lock:
            self._spans.extend(_spans(request))
            del self._spans[:-_MOST_SPANS]
        return trace_service_pb2.ExportTraceServiceResponse()


def _spans(request: trace_service_pb2.ExportTraceServiceRequest) -> Iterable[Span]:
    for resource in request.resource_spans:
        service = str(_attributes(resource.resource.attributes).get("service.name", ""))
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    name=span.name,
                    service=service,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    error=span.status.code == span.status.STATUS_CODE_ERROR,
                    attributes=_attributes(span.attributes),
                    links=tuple(link.span_id.hex() for link in span.links),
                )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
