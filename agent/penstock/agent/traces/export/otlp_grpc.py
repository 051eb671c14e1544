"""OTLP over gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.util.re import parse_env_headers
from penstock.agent.traces.export.otlp_config import grpc_target
from penstock.agent.traces.export.otlp_status import ExportError, grpc_error
from penstock.proto import __version__

if TYPE_CHECKING:
    from penstock.agent.traces.export.otlp_config import ExportSettings

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.primary_user_agent", f"penstock-agent/{__version__}"),
    # A backend that is back is found soon; the pace of our own tries is the export's.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", 1 << 20),
]


class GrpcSender:
    """A channel to the backend.

    Raises:
        OSError: a certificate cannot be read.
        ValueError: the address cannot be used.

    """

    def __init__(self, settings: ExportSettings) -> None:
        target, secure = grpc_target(settings.endpoint, insecure=settings.insecure)
        compression = grpc.Compression.Gzip if settings.gzip else grpc.Compression.NoCompression
        if secure:
            self._channel = grpc.secure_channel(target, _credentials(settings), _OPTIONS, compression)
        else:
            self._channel = grpc.insecure_channel(target, _OPTIONS, compression)
        self._timeout = settings.timeout
        self._metadata = tuple(parse_env_headers(settings.headers, liberal=True).items())
        self._export: Any = self._channel.unary_unary(
            _METHOD,
            request_serializer=ExportTraceServiceRequest.SerializeToString,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )

    def send(self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse | ExportError:
        """Make one call, within its time-out."""
        try:
            response: ExportTraceServiceResponse = self._export(
                request, timeout=self._timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            trailers = [(item.key, item.value) for item in error.trailing_metadata() or ()]
            return grpc_error(error.code(), error.details() or "", trailers)
        except ValueError as error:
            # The channel was closed by an interruption.
            return ExportError(str(error))
        return response

    def interrupt(self) -> None:
        """Close the channel, which ends a call that is under way."""
        self._channel.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _credentials(settings: ExportSettings) -> grpc.ChannelCredentials:
    def read(path: str) -> bytes | None:
        return Path(path).read_bytes() if path else None

    return grpc.ssl_channel_credentials(
        read(settings.certificate), read(settings.client_key), read(settings.client_certificate)
    )
