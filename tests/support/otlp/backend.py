"""A real OTLP/gRPC trace backend on a loopback port: it can be told to fail, stopped and started again."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


@dataclass(frozen=True)
class Link:
    """A link to another span."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the backend got it; ids in hex, ``kind`` and ``status`` in lower case."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    start: int
    end: int
    status: str
    status_message: str
    attributes: dict[str, Any]
    links: tuple[Link, ...]
    resource: dict[str, Any]
    scope: str


def _received(resource: dict[str, Any], scope: str, span: trace_pb2.Span) -> ReceivedSpan:
    return ReceivedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        status=trace_pb2.Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_").lower(),
        status_message=span.status.message,
        attributes=_attributes(span.attributes),
        links=tuple(
            Link(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)) for link in span.links
        ),
        resource=resource,
        scope=scope,
    )


@dataclass(frozen=True)
class Refusal:
    """An error that tells more than its code; ``retry_after`` in seconds goes into a RetryInfo."""

    code: grpc.StatusCode
    retry_after: float | None = None
    details: str = "told to refuse"

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Return the trailing metadata."""
        if self.retry_after is None:
            return ()
        info = RetryInfo()
        info.retry_delay.FromNanoseconds(int(self.retry_after * 1e9))
        status = Status(code=self.code.value[0], message=self.details)
        status.details.add().Pack(info)
        return (("grpc-status-details-bin", status.SerializeToString()),)


@dataclass(frozen=True)
class Partial:
    """A partial success: *rejected* spans were not taken. The spans of the call are not kept here."""

    rejected: int
    message: str = "too long"


Answer: TypeAlias = "grpc.StatusCode | Refusal | Partial | None"


class OtlpBackend(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans over OTLP/gRPC.

    Attributes:
        endpoint: what ``OTEL_EXPORTER_OTLP_ENDPOINT`` takes; the port stays over stop and start.
        calls: how many Export calls came, those that were refused included.

    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._spans: list[ReceivedSpan] = []
        self._refuse: Callable[[list[ReceivedSpan]], Answer] = lambda _spans: None
        self._server: grpc.Server | None = None
        self._port = 0
        self.calls = 0

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen; after a stop, on the same port again."""
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        port = server.add_insecure_port(f"127.0.0.1:{self._port}")
        assert port, f"port {self._port} is taken"
        server.start()
        self._server, self._port = server, port

    def stop(self) -> None:
        """Go down at once; what was received stays."""
        if self._server is not None:
            self._server.stop(grace=None).wait(60)
            self._server = None

    def refuse(self, decide: Callable[[list[ReceivedSpan]], Answer]) -> None:
        """Let *decide* answer each call: an error to refuse its spans with, None to take them."""
        with self._condition:
            self._refuse = decide

    def Export(  # noqa: N802  (the servicer's name)
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Take or refuse one call."""
        spans = [
            _received(_attributes(resource.resource.attributes), scope.scope.name, span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._condition:
            self.calls += 1
            answer = self._refuse(spans)
            if answer is None:
                self._spans.extend(spans)
            self._condition.notify_all()
        response = trace_service_pb2.ExportTraceServiceResponse()
        if isinstance(answer, grpc.StatusCode):
            answer = Refusal(answer)
        if isinstance(answer, Refusal):
            context.set_trailing_metadata(answer.trailers())
            context.abort(answer.code, answer.details)
        if isinstance(answer, Partial):
            response.partial_success.rejected_spans = answer.rejected
            response.partial_success.error_message = answer.message
        return response

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans so far, in the order of their arrival; doubles are there twice."""
        with self._condition:
            return list(self._spans)

    def wait(
        self, condition: Callable[[OtlpBackend], object], what: str, deadline: float = 60.0
    ) -> list[ReceivedSpan]:
        """Wait until *condition* holds, looked at after each call; return the spans, or fail with *what*."""
        end = time.monotonic() + deadline
        with self._condition:
            # RLock inside: the condition may read `spans`.
            while not condition(self):
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(
                        f"not within {deadline:g} s: {what}; spans: {[span.name for span in self._spans]}"
                    )
                self._condition.wait(left)
            return list(self._spans)

    def wait_for(self, count: int, deadline: float = 60.0) -> list[ReceivedSpan]:
        """Wait until *count* spans have come."""
        return self.wait(lambda backend: len(backend.spans) >= count, f"{count} spans", deadline)


@contextmanager
def otlp_backend() -> Iterator[OtlpBackend]:
    """Run a backend; it is stopped at the end."""
    backend = OtlpBackend()
    backend.start()
    try:
        yield backend
    finally:
        backend.stop()
