"""The meaning of a backend's answers: tables, and invalid answers."""

from __future__ import annotations

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.traces.export.otlp_status import ExportError, ExportStatusCode, grpc_error, http_error

NOW = 1_750_000_000.0


def trailers(seconds: int) -> list[tuple[str, bytes]]:
    """Return the trailers in which a server asks for a delay."""
    status = Status()
    status.details.add().Pack(ErrorInfo(reason="busy"))
    info = RetryInfo()
    info.retry_delay.seconds = seconds
    status.details.add().Pack(info)
    return [("x", "y"), ("grpc-status-details-bin", status.SerializeToString())]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_grpc_codes(code):
    """Codes that OTLP calls retryable and codes of a wrong configuration are retried; the rest concern the data."""
    ambiguous = {"UNKNOWN", "ALREADY_EXISTS", "FAILED_PRECONDITION", "INTERNAL"}
    expected = (
        ExportStatusCode.PERMANENT
        if code.name == "INVALID_ARGUMENT"
        else ExportStatusCode.AMBIGUOUS if code.name in ambiguous else ExportStatusCode.RETRY
    )  # fmt: skip
    assert grpc_error(code, "why") == ExportError(f"{code.name}: why", expected)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (5 vs. 4)"),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (5 vs. 4)"),
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4: 5"),
        ("RESOURCE_EXHAUSTED", "Received message exceeds the maximum configured message size."),
        ("OUT_OF_RANGE", "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes"),
    ],
    ids=["Go", "C++", "Java", ".NET", "Rust"],
)
def test_a_message_that_is_too_large_is_refused(code, details):
    """A message over the size limit is never retried, whatever its status code."""
    assert grpc_error(grpc.StatusCode[code], details).code is ExportStatusCode.PERMANENT


def test_a_message_that_is_too_large_over_http():
    """A gateway's 429 for a message over the size limit is not retried."""
    text = b"grpc: received message after decompression larger than max (15728641 vs. 15728640)"
    error = http_error(429, {}, text, 0)
    assert error is not None
    assert error.code is ExportStatusCode.PERMANENT


def test_grpc_details():
    """A RetryInfo sets the delay; RESOURCE_EXHAUSTED without one is retried too."""
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    for busy in ("data refused due to high memory usage", "the rate exceeds the maximum"):
        assert grpc_error(exhausted, busy).code is ExportStatusCode.RETRY
    assert grpc_error(exhausted, "", trailers(7)) == ExportError(
        "RESOURCE_EXHAUSTED: ", ExportStatusCode.RETRY, 7
    )
    assert grpc_error(exhausted, "", trailers(86_400)).wait == 300
    assert grpc_error(exhausted, "", trailers(-5)).wait == 0
    assert grpc_error(grpc.StatusCode.UNAVAILABLE, "", trailers(2)).wait == 2
    assert len(grpc_error(grpc.StatusCode.INTERNAL, "x" * 10_000).text) == 300


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ExportStatusCode.PERMANENT), (413, ExportStatusCode.PERMANENT), (422, ExportStatusCode.PERMANENT),
        (401, ExportStatusCode.RETRY), (403, ExportStatusCode.RETRY), (404, ExportStatusCode.RETRY), (429, ExportStatusCode.RETRY), (301, ExportStatusCode.RETRY),
        (502, ExportStatusCode.RETRY), (503, ExportStatusCode.RETRY), (504, ExportStatusCode.RETRY), (100, ExportStatusCode.RETRY),
        (500, ExportStatusCode.AMBIGUOUS), (501, ExportStatusCode.AMBIGUOUS), (418, ExportStatusCode.AMBIGUOUS),
    ],
)  # fmt: skip
def test_http_statuses(status, code):
    """HTTP statuses are classified likewise; 2xx is no error."""
    assert http_error(status, {}, b"why", NOW) == ExportError(f"HTTP {status}: why", code)
    assert http_error(200, {}, b"", NOW) is None
    assert http_error(202, {}, b"", NOW) is None


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("", 0), ("7", 7), (" 7 ", 7), ("99999999", 300), ("-1", 0), ("soon", 0), ("\u0664", 0),
        ("Sun, 15 Jun 2025 15:07:10 GMT", 30), ("Sun, 15 Jun 2025 15:07:10", 30),
        ("Sun, 15 Jun 2025 15:06:00 GMT", 0), ("Sun, 15 Jun 2199 15:06:00 GMT", 300),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 0), ("Mon, 01 Jan 0001 00:00:00 +2359", 0),
    ],
)  # fmt: skip
def test_retry_after(text, wait):
    """Seconds or a date; never longer than five minutes, never an error."""
    error = http_error(503, {"Retry-After": text}, b"", NOW)
    assert error is not None
    assert error.wait == wait


def test_a_protobuf_answer_tells_its_message():
    """The error has the message of the google.rpc.Status in the answer."""
    body = Status(message="span without a name").SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    assert http_error(400, headers, body, NOW) == ExportError(
        "HTTP 400: span without a name", ExportStatusCode.PERMANENT
    )
    assert http_error(400, headers, b"\xff\xff", NOW) == ExportError(
        "HTTP 400: unreadable answer", ExportStatusCode.PERMANENT
    )


@given(
    st.integers(100, 999),
    st.dictionaries(st.sampled_from(["Retry-After", "Content-Type"]), st.text(max_size=40)),
    st.binary(max_size=400),
)
def test_no_answer_is_an_exception(status, headers, body):
    """For any answer the delay and the text stay within their limits."""
    error = http_error(status, headers, body, NOW)
    if error is not None:
        assert 0 <= error.wait <= 300
        assert len(error.text) <= 300


@given(st.binary(max_size=100))
def test_no_trailer_is_an_exception(value):
    """For any trailer the delay and the text stay within their limits."""
    error = grpc_error(grpc.StatusCode.UNAVAILABLE, "", [("grpc-status-details-bin", value)])
    assert 0 <= error.wait <= 300
