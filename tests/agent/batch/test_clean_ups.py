"""vLLM's own clean-up requests are told from those of users."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.batch import is_clean_up
from penstock.proto.v1.common_pb2 import ROLE_PREFILL

from tests.support.agent.batches import TIME
from tests.support.agent.stories import DECODE, clean_up


def test_a_clean_up_is_found() -> None:
    """It has one made-up token, and is aborted before its first step."""
    assert is_clean_up(clean_up().request_closed)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_tokens": 412},
        {"finish_reason": "error"},
        {"scheduled_time_unix_nano": TIME},
        {"kv_role": ROLE_PREFILL},
    ],
    ids=str,
)
def test_a_user_s_request_is_none(fields: dict[str, Any]) -> None:
    """Whatever else it has in common with one."""
    assert not is_clean_up(clean_up(DECODE, **fields).request_closed)
