"""Classifies the backend's answers by the OTLP specification, with two differences.

The specification drops what must not be retried. Here spans wait in a log: an answer about the configuration (a password,
a path) is retried like an outage, and so is an ambiguous one, for a limited number of tries.
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
"""Characters of a backend's error that are told."""
# Upper bound of the wait that a backend asks for, in seconds.
_MAX_WAIT = 300.0


class ExportStatusCode(Enum):
    """What an error says about the spans of its call.

    ``RETRY``: nothing; the backend is away, busy, or wrongly configured. ``PERMANENT``: the backend will never
    accept all of them. ``AMBIGUOUS``: either.
    """

    RETRY = "retry"
    AMBIGUOUS = "ambiguous"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class ExportError:
    """Why spans were not delivered.

    Attributes:
        text: for people; at most ``MAX_TEXT`` characters.
        wait: seconds that the backend asks for before the next try; 0 if it does not ask.

    """

    text: str
    code: ExportStatusCode = ExportStatusCode.RETRY
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The backend accepted the call but for *rejected* spans, for the reason *text*."""

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
_HTTP_PERMANENT = frozenset((400, 413, 422))
_HTTP_OK, _HTTP_REDIRECT, _HTTP_ERROR = 200, 300, 400


def grpc_error(
    code: grpc.StatusCode, details: str, trailers: Iterable[tuple[str, str | bytes]] = ()
) -> ExportError:
    """Classify a gRPC call that ended with *code*."""
    text = f"{code.name}: {details}"[:MAX_TEXT]
    wait = _retry_info(trailers)
    if wait is None and _too_large(details):
        return ExportError(text, ExportStatusCode.PERMANENT)
    if code in _GRPC_RETRY:
        return ExportError(text, ExportStatusCode.RETRY, wait or 0.0)
    return ExportError(
        text,
        ExportStatusCode.PERMANENT
        if code is grpc.StatusCode.INVALID_ARGUMENT
        else ExportStatusCode.AMBIGUOUS,
    )


def http_error(status: int, headers: Mapping[str, str], body: bytes, now: float) -> ExportError | None:
    """Classify an HTTP answer; None if the spans were accepted. *now* is in seconds since the epoch."""
    if _HTTP_OK <= status < _HTTP_REDIRECT:
        return None
    text = f"HTTP {status}: {_http_text(headers, body)}"[:MAX_TEXT]
    if status in _HTTP_PERMANENT or (status in _HTTP_RETRY and _too_large(text)):
        return ExportError(text, ExportStatusCode.PERMANENT)
    if status in _HTTP_RETRY or status < _HTTP_ERROR:
        return ExportError(text, ExportStatusCode.RETRY, _retry_after(headers.get("Retry-After", ""), now))
    return ExportError(text, ExportStatusCode.AMBIGUOUS)


def _too_large(text: str) -> bool:
    """Return whether *text* says that the message is above a size limit, so that half of it may pass."""
    return any(words in text.lower() for words in _TOO_LARGE)


def _http_text(headers: Mapping[str, str], body: bytes) -> str:
    if "protobuf" in headers.get("Content-Type", ""):
        try:
            return str(Status.FromString(body).message)
        except DecodeError:
            return "unreadable answer"
    return body[:MAX_TEXT].decode(errors="replace")


def _retry_after(text: str, now: float) -> float:
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_WAIT)
    try:
        moment = parsedate_to_datetime(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
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
