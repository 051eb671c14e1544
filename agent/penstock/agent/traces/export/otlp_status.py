"""What a backend's answer means, by the OTLP specification, and where we differ from it.

The specification drops what must not be retried. Here the data waits in a log, so an answer that is about the
configuration (a password, a path) is waited out like an outage, and so is one that does not say whose fault it is, unless
it comes for one span alone while the others are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_TEXT = 300
# What a backend may ask us to wait, at most.
_MAX_WAIT = 300.0


class ExportStatusCode(Enum):
    """What to do with spans that were not taken."""

    RETRY = "retry"
    DOUBTFUL = "doubtful"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ExportError:
    """Why spans were not delivered.

    Attributes:
        wait: seconds that the backend asks us to wait; 0 if it asks nothing.

    """

    text: str
    fate: ExportStatusCode = ExportStatusCode.RETRY
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The spans were delivered, but for *rejected* ones, for the reason *text*."""

    rejected: int = 0
    text: str = ""


# The specification's retryable ones, and those that are about the configuration.
_GRPC_RETRY = frozenset(
    (
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.NOT_FOUND,
        # The specification wants a RetryInfo; the Collector's memory limiter and Jaeger's full queue send none.
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
)
# What the servers of the usual gRPC libraries say of a message above their limit: C++ and Go, Java, .NET, Rust.
# As long as they are, because a rate has its maximum, too.
_TOO_LARGE = (
    "larger than max",
    "message exceeds maximum size",
    "message exceeds the maximum configured message size",
    "message length too large",
)
_HTTP_RETRY = frozenset((408, 429, 502, 503, 504, 401, 403, 404, 405, 407))
_HTTP_REFUSED = frozenset((400, 413, 422))
_HTTP_OK, _HTTP_REDIRECT, _HTTP_ERROR = 200, 300, 400


def of_grpc(
    code: grpc.StatusCode, details: str, trailers: Iterable[tuple[str, str | bytes]] = ()
) -> ExportError:
    """Judge a call that ended with *code*."""
    text = f"{code.name}: {details}"[:MAX_TEXT]
    wait = _retry_info(trailers)
    if wait is None and _too_large(details):
        return ExportError(text, ExportStatusCode.REFUSED)
    if code in _GRPC_RETRY:
        return ExportError(text, ExportStatusCode.RETRY, wait or 0.0)
    return ExportError(
        text,
        ExportStatusCode.REFUSED if code is grpc.StatusCode.INVALID_ARGUMENT else ExportStatusCode.DOUBTFUL,
    )


def of_http(status: int, headers: Mapping[str, str], body: bytes, now: float) -> ExportError | None:
    """Judge an answer; None if it says that the spans were taken. *now* is in seconds since the epoch."""
    if _HTTP_OK <= status < _HTTP_REDIRECT:
        return None
    text = f"HTTP {status}: {_http_text(headers, body)}"[:MAX_TEXT]
    if status in _HTTP_REFUSED or (status in _HTTP_RETRY and _too_large(text)):
        return ExportError(text, ExportStatusCode.REFUSED)
    if status in _HTTP_RETRY or status < _HTTP_ERROR:
        return ExportError(text, ExportStatusCode.RETRY, _retry_after(headers.get("Retry-After", ""), now))
    return ExportError(text, ExportStatusCode.DOUBTFUL)


def _too_large(text: str) -> bool:
    """Tell whether *text* says that half of the spans may pass and all of them never will."""
    return any(words in text.lower() for words in _TOO_LARGE)


def _http_text(headers: Mapping[str, str], body: bytes) -> str:
    if "protobuf" in headers.get("Content-Type", ""):
        try:
            return str(Status.FromString(body).message)
        except DecodeError:
            return "an answer that cannot be read"
    return body[:MAX_TEXT].decode(errors="replace")


def _retry_after(text: str, now: float) -> float:
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, 0.0), _MAX_WAIT)


def _retry_info(trailers: Iterable[tuple[str, str | bytes]]) -> float | None:
    """Return the wait that a google.rpc.RetryInfo asks for; None if there is none."""
    for name, value in trailers:
        if name != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        info = RetryInfo()
        try:
            for detail in Status.FromString(value).details:
                if detail.Unpack(info):
                    seconds = float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
                    return min(max(seconds, 0.0), _MAX_WAIT)
        except DecodeError:
            return None
    return None
