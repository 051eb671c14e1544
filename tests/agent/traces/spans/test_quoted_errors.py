"""Errors of engines as spans and sentences quote them."""

from __future__ import annotations

import pytest
from penstock.agent.errors import without_advice
from penstock.agent.traces.spans.attributes import error_message
from penstock.proto.v1 import common_pb2 as common

_ADVICE = "Disable this check using --kv-transfer-config '{\"enforce_handshake_compat\": false}'"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", ""),
        ("no answer", "no answer"),
        (f"hash mismatch. Be identical.{_ADVICE}", "hash mismatch. Be identical."),
        (f"hash mismatch.\n {_ADVICE[:30]}", "hash mismatch."),
        (_ADVICE, ""),
    ],
)
def test_vllm_s_advice_to_switch_its_check_off_is_left_out(text: str, quoted: str) -> None:
    """Also where the engine has cut it; other texts stay as they are."""
    assert without_advice(text) == quoted


def test_the_status_of_a_span() -> None:
    """Mode and error type stay, and what is left of the text."""
    mode, kind = common.FAILURE_MODE_HANDSHAKE, common.ERROR_TYPE_INCOMPATIBLE
    assert error_message(mode, kind, f"mismatch. {_ADVICE}") == "handshake incompatible: mismatch."
    assert error_message(mode, kind, _ADVICE) == "handshake incompatible"
