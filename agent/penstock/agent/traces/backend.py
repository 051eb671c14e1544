"""The way to the trace backend: the SDK's OTLP exporter, and what it says when it fails."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from penstock.agent.traces.settings import ExportSettings

# The backend has looked at the spans and does not want them, or not so many at once: by gRPC and by
# HTTP status. All other errors are its own, or the configuration's, and pass.
_REFUSED = frozenset((grpc.StatusCode.INVALID_ARGUMENT, 400, 413))
_MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class ExportError:
    """Why spans were not delivered.

    Attributes:
        refused: it lies in the spans; sending the same again is of no use.

    """

    text: str
    refused: bool = False


class _Listener(logging.Filter):
    """Keeps the first error of a call of the SDK's exporter, which returns no more than that it failed.

    A filter and not a handler: the SDK's own filter, which lets nothing through twice, comes before
    the handlers. What the SDK says goes no further: it is in the status, and one line of our log says
    when the trouble begins.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        super().__init__()
        self.thread = 0
        self.error: ExportError | None = None
        modules = {base.__module__ for base in type(exporter).__mro__ if base is not object}
        self._loggers = [logging.getLogger(module) for module in sorted(modules)]
        for logger in self._loggers:
            logger.filters.insert(0, self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Take a record of this thread."""
        if record.thread != self.thread:
            return True
        if record.levelno >= logging.WARNING and self.error is None:
            values = record.args if isinstance(record.args, tuple) else ()
            refused = any(isinstance(value, grpc.StatusCode | int) and value in _REFUSED for value in values)
            self.error = ExportError(record.getMessage()[:_MAX_TEXT], refused)
        return False

    def close(self) -> None:
        """Let go of the loggers."""
        for logger in self._loggers:
            logger.removeFilter(self)


class Backend:
    """Sends spans to where ``OTEL_EXPORTER_OTLP_*`` say; one thread, but for :meth:`interrupt`.

    Raises:
        ConfigError: one of these variables is wrong.

    """

    def __init__(self, settings: ExportSettings) -> None:
        self._exporter = _exporter(settings)
        self._listener = _Listener(self._exporter)
        self._ended = False

    def send(self, spans: Sequence[ReadableSpan]) -> ExportError | None:
        """Send *spans*; None if they were taken. Blocks for OTEL_EXPORTER_OTLP_TIMEOUT at most."""
        self._listener.thread, self._listener.error = threading.get_ident(), None
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  (a span that cannot be encoded must not end the export)
            return ExportError(f"{type(error).__name__}: {error}"[:_MAX_TEXT], refused=True)
        if result is SpanExportResult.SUCCESS:
            return None
        return self._listener.error or ExportError("the exporter failed and did not say why")

    def interrupt(self) -> None:
        """Make a call that is under way give up; from any thread. Nothing can be sent afterwards."""
        if not self._ended:
            self._ended = True
            self._exporter.shutdown()

    def close(self) -> None:
        """End; lets go of the connection and of the SDK's loggers. Idempotent."""
        self.interrupt()
        self._listener.close()


def _exporter(settings: ExportSettings) -> SpanExporter:
    try:
        return _open(settings)
    except Exception as error:
        raise ConfigError(
            f"no trace exporter for {settings.shown} over {settings.protocol}: {error};"
            " check the OTEL_EXPORTER_OTLP_* variables"
        ) from error


def _open(settings: ExportSettings) -> SpanExporter:
    # Imported here: an agent without an endpoint needs neither, and each drags in its own transport.
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter()
