"""What a record derives from a request."""

from __future__ import annotations

import pytest
from penstock.instrumentation.vllm.requests.record import external_id


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
