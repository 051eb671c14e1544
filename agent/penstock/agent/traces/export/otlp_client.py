"""Makes OTLP calls to the trace backend, over gRPC or HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from penstock.agent.errors import ConfigError
from penstock.agent.traces.export.otlp_status import MAX_TEXT, Accepted, ExportError, ExportStatusCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )
    from opentelemetry.sdk.trace import ReadableSpan
    from penstock.agent.traces.export.otlp_config import ExportSettings


class Sender(Protocol):
    """One protocol of OTLP."""

    def send(self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse | ExportError:
        """Make one call, within its time-out."""

    def interrupt(self) -> None:
        """End a call that is under way; from any thread. Nothing can be sent afterwards."""

    def close(self) -> None:
        """Close the connection; on the thread that sends, or when that has ended."""


class OtlpClient:
    """Sends spans to the configured endpoint; one thread, except :meth:`interrupt`.

    Raises:
        ConfigError: a certificate cannot be read, or an address cannot be used.

    """

    def __init__(self, settings: ExportSettings) -> None:
        try:
            self._sender = _open(settings)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no trace export to {settings.shown_endpoint} over {settings.protocol}: {error};"
                " check the OTEL_EXPORTER_OTLP_* variables"
            ) from error

    def send(self, spans: Sequence[ReadableSpan]) -> Accepted | ExportError:
        """Send *spans*. Blocks for OTEL_EXPORTER_OTLP_TIMEOUT at most."""
        try:
            request = encode_spans(spans)
        except Exception as error:  # noqa: BLE001  (a span that cannot be encoded must not end the export)
            return ExportError(f"{type(error).__name__}: {error}"[:MAX_TEXT], ExportStatusCode.PERMANENT)
        answer = self._sender.send(request)
        if isinstance(answer, ExportError):
            return answer
        partial = answer.partial_success
        rejected = min(max(partial.rejected_spans, 0), len(spans))
        return Accepted(rejected, partial.error_message[:MAX_TEXT])

    def interrupt(self) -> None:
        """End a call that is under way; from any thread. Nothing can be sent afterwards."""
        self._sender.interrupt()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._sender.interrupt()
        self._sender.close()


def _open(settings: ExportSettings) -> Sender:
    # Imported here: an agent without an endpoint needs neither.
    if settings.protocol == "grpc":
        from penstock.agent.traces.export.otlp_grpc import GrpcSender  # noqa: PLC0415

        return GrpcSender(settings)
    from penstock.agent.traces.export.otlp_http import HttpSender  # noqa: PLC0415

    return HttpSender(settings)
