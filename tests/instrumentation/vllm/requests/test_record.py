"""What a record derives from a request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from penstock.instrumentation.vllm.naming.peers import TEXT_MAX
from penstock.instrumentation.vllm.requests.record import capture, external_id


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("cmpl-my-id-0-0badcafe", "cmpl-my-id-0"),
        ("chatcmpl-1234-12345678", "chatcmpl-1234"),
        ("without", "without"),
        ("b157cdd323990a3e", "b157cdd323990a3e"),
    ],
)
def test_external_id(request_id: str, expected: str) -> None:
    """The client's id is vLLM's without the random suffix."""
    assert external_id(request_id) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"traceparent": "00-1-1-01", "x-request-id": "mine"}, "mine", id="dynamo"),
        pytest.param({"traceparent": "00-1-1-01"}, "", id="none"),
        pytest.param(None, "", id="no-headers"),
        pytest.param({"x-request-id": 7}, "", id="no-string"),
        pytest.param({"x-request-id": "x" * 100_000}, "x" * TEXT_MAX, id="cut"),
    ],
)
def test_the_clients_id_beside_the_trace_context(headers: dict[str, object] | None, expected: str) -> None:
    """A front end that makes ids of its own passes the client's as a header; it is a client's text."""
    request = SimpleNamespace(
        request_id="7b1d-0badcafe", kv_transfer_params=None, trace_headers=headers, arrival_time=1.0
    )
    assert capture(request).client_id == expected
