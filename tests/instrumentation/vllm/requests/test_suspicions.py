"""Which answers an engine itself suspects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming import Peer
from penstock.instrumentation.vllm.requests.affected import Cause
from penstock.instrumentation.vllm.requests.outcomes import suspicions
from penstock.instrumentation.vllm.requests.record import RequestRecord
from penstock.proto.v1.events_pb2 import AnswerSuspected

CAUSE = Cause(c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_TIMEOUT)
READ, NAN = c.SUSPECT_REASON_FAILED_READ, c.SUSPECT_REASON_NAN


def reasons(cause: Cause | None, nans: int | None, finish_reason: str, output_tokens: int) -> list[int]:
    """Return the reasons for a request with a peer; their fields are those of the wire."""
    record = RequestRecord("r", peer=Peer("p:1"), remote_request_id="remote", nans=nans)
    found: list[dict[str, Any]] = list(suspicions(record, cause, finish_reason, output_tokens))
    assert all(AnswerSuspected(**fields) for fields in found)
    return [fields["reason"] for fields in found]


@pytest.mark.parametrize(
    ("cause", "nans", "finish_reason", "output_tokens", "expected"),
    [
        (None, None, "stop", 3, []),
        (None, 0, "stop", 3, []),
        (None, 4, "stop", 3, [NAN]),
        (CAUSE, None, "length", 3, [READ]),
        (CAUSE, 4, "stop", 3, [READ, NAN]),
        (CAUSE, 4, "error", 3, []),
        (CAUSE, 4, "stop", 0, []),
        (CAUSE, 4, "abort", 3, [NAN]),
        (CAUSE, None, "", 3, []),
    ],
)
def test_reasons(
    cause: Cause | None, nans: int | None, finish_reason: str, output_tokens: int, expected: list[int]
) -> None:
    """Only what the client has got can be wrong; who left while a load failed got nothing of it."""
    assert reasons(cause, nans, finish_reason, output_tokens) == expected


@given(
    st.sampled_from([None, CAUSE]),
    st.none() | st.integers(0, 9),
    st.sampled_from(["", "stop", "length", "abort", "error", "repetition"]),
    st.integers(0, 3),
)
def test_a_suspect_has_a_cause_and_a_token(
    cause: Cause | None, nans: int | None, finish_reason: str, output_tokens: int
) -> None:
    """Each reason comes once, and never without what it names."""
    found = reasons(cause, nans, finish_reason, output_tokens)
    assert len(found) == len(set(found))
    assert READ not in found or cause is not None
    assert NAN not in found or nans
    assert not found or (output_tokens and finish_reason not in {"", "error"})
