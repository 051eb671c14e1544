"""Prefill in two pipeline stages, decode in one, over NIXL's pull: vLLM refuses such a peer, and Penstock names the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from tests.support.engine.pairs import PIPELINE_PREFILL

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.parametrize("stack", [PIPELINE_PREFILL], indirect=True, ids=["pp2-prefill"]),
]


def test_decode_refuses_a_peer_in_pipeline_stages(kv: Bench) -> None:
    """A handshake that does not fit: `incompatible`, one outcome, and the right tokens under `recompute`."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request = kv.prefilled(4)

    assert kv.decode(request).completion == request.text

    failure = kv.failure(request)
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_INCOMPATIBLE)
    assert kv.outcome(request).outcome == c.OUTCOME_RECOMPUTED
