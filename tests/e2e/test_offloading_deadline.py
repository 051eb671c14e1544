"""A deadline ends a request whose blocks vLLM's OffloadingConnector does not bring back; a late copy writes to nobody else's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.steps import PROMPT
from tests.support.engine.bench import new_name
from tests.support.kv.connector_trial import offloading_bench
from tests.support.kv.shared_cache import ask, saved

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine


def test_a_load_that_hangs(tmp_path: Path) -> None:
    """The client gets its 503; others compute the same prompt meanwhile, and what comes late is not in their answers."""
    with offloading_bench(tmp_path) as (bench, server):
        name = new_name("offloading")
        prompt, others = f"{name} {PROMPT * 6}", [f"{number} {PROMPT * 6}" for number in range(4)]
        expected = saved(server, prompt)
        texts = [ask(server, each).completion for each in others]
        bench.enforce(
            kvLoadFailure={"action": "fail"}, deferral={"maxTransferWait": "1s", "onTimeout": "fail"}
        )
        hangs = tmp_path / "with" / "gate"
        hangs.touch()
        failed = ask(server, prompt, name)
        assert failed.status == 503, failed.text
        assert "mode timeout, deferral.maxTransferWait 1 s, peer host" in failed.body["error"]["message"]
        pin = bench.event("blocks_pinned", name).blocks_pinned
        assert (pin.peer.address, pin.released, pin.blocks > 0) == ("host", False, True)
        bench.wait_value(pin.blocks, "penstock_held_blocks", holder="pinned", peer="host")
        (outcome,) = [event.load_outcome for event in bench.events("load_outcome", name)]
        assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)
        # These are still in the engine's own prefix cache.
        assert [ask(server, each).completion for each in others] == texts
        hangs.unlink()
        assert [ask(server, each).completion for each in others] == texts
        bench.event("blocks_pinned", name, released=True)
        bench.wait_value(0, "penstock_held_blocks", holder="pinned", peer="host")
        assert ask(server, prompt).completion == expected
        assert len(bench.events("transfer_failure", name)) == 1
