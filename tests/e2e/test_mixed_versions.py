"""A roll-out that mixes two versions of vLLM, on real engines: one cause, by version, before and after requests fail of it."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.steps import until
from tests.support.engine.pairs import MIXED_VERSIONS, OLDER_VLLM

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench

pytestmark = [
    pytest.mark.engine,
    # Last of all its build leaves a stamp.
    pytest.mark.skipif(
        not (OLDER_VLLM / ".penstock-setup").exists(),
        reason="VLLM=0.31.0 scripts/setup-version.sh builds an older vLLM",
    ),
    pytest.mark.parametrize("stack", [MIXED_VERSIONS], indirect=True, ids=["mixed"]),
]


def _verdict(kv: Bench) -> str:
    """Return the first line of what ``agentctl diagnose`` says."""
    return kv.agent.ctl("diagnose").output.partition("\n")[0]


def test_two_versions(kv: Bench) -> None:
    """They refuse each other; the verdict names both versions before the first request, and after one has failed of it."""

    def is_mixed() -> bool:
        return "run vLLM 0.31.0 and 0.32.0: NIXL exchanges no KV blocks" in _verdict(kv)

    until(is_mixed, "The versions are not told before a request")
    pairs = kv.admin.ListPairs(admin.ListPairsRequest(), timeout=60).pairs
    assert [pair.compatible for pair in pairs] == [admin.PAIR_COMPATIBILITY_NO]
    request = kv.prefilled()
    answer = kv.decode(request)
    assert answer.status != http.client.OK, answer.text
    until(lambda: kv.events("load_outcome", request.name), "The refusal is not told")
    assert is_mixed()
    assert "harm: 1 request, 1 failed" in kv.agent.ctl("diagnose").output
    assert "incompatible" in kv.ctl("explain", request.name)
