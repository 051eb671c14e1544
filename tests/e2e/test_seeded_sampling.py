"""Seeded sampling: a request that waits for its load has sampled nothing when that fails, so its text stays the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.client import post_json
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.kv.bench import TOKENS

if TYPE_CHECKING:
    from demo.servers import Server
    from tests.support.kv.bench import Bench, Prefilled

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]

SEED = 4711


def _sampled(server: Server, request: Prefilled, seed: int, **fields: Any) -> str:
    """Return what *server* makes of a prompt at temperature 1 with this seed."""
    body = {
        "prompt": request.prompt,
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": seed,
        "ignore_eos": True,
        **fields,
    }
    return post_json(f"{server.url}/v1/completions", body, headers={"X-Request-Id": request.name}).completion


def test_a_seed_gives_the_same_text_with_and_without_a_failure(kv: Bench) -> None:
    """The load that is made, and the load that failed and is recomputed, continue as prefill does alone with that seed."""
    kv.enforce(kvLoadFailure={"action": "recompute"})
    for request in (kv.prefilled(), kv.misled()):
        plain = _sampled(kv.stack.prefill, request, SEED)
        # Another seed is another text: the comparison says something.
        assert plain != _sampled(kv.stack.prefill, request, SEED + 1)
        assert _sampled(kv.stack.decode, request, SEED, kv_transfer_params=dict(request.params)) == plain
    assert kv.outcome(request).outcome == c.OUTCOME_RECOMPUTED
