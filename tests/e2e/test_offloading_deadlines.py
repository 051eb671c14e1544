"""A deadline ends a request whose blocks OffloadingConnector does not bring back; its late copy writes to nobody else's blocks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from demo.common.agent import Agent
from demo.common.model import tiny_model
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name, wait_known
from tests.support.engine.pairs import penstock_env
from tests.support.kv.connector_trial import offloading
from tests.support.kv.late_loads import (
    DEADLINE,
    SMALL_CACHE,
    Others,
    check_given_up,
    check_put_off,
    check_released,
    copies_stand_still,
    long_prompt,
    many,
    usage,
)
from tests.support.kv.shared_cache import ask, saved

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

_NAME = "offloading"


def test_a_copy_that_stands_still(tmp_path: Path) -> None:
    """The client gets its 503, others use all other blocks, also while the copy comes late, and then the same text loads."""
    args = ("--kv-transfer-config", json.dumps(offloading(tmp_path)), *SMALL_CACHE)
    with short_directory() as directory:
        agent = Agent(directory, engines=1)
        agent.start()
        env = penstock_env({"PENSTOCK_ENDPOINT": agent.endpoint, "VLLM_SERVER_DEV_MODE": "1"}, _NAME)
        spec = ServerSpec(_NAME, args=args, env={**env, "PENSTOCK_LABELS": f"tier={_NAME}"})
        server = Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=tmp_path)
        bench = AgentBench(agent, _NAME, labels={"tier": _NAME}, policy="offloading-deadlines")
        try:
            server.wait_ready()
            wait_known(agent, _NAME)
            _try(bench, server, tmp_path / "gate")
            assert not bench.guard_errors()
        finally:
            bench.close()
            server.stop()
            agent.stop()


def _try(bench: AgentBench, server: Server, gate: Path) -> None:
    others = Others(server, prompts=many(1200, 6))
    texts = others.ask()
    name, put_off = new_name("load"), new_name("look")
    prompt = long_prompt(name)
    expected = saved(server, prompt)
    bench.enforce(
        kvLoadFailure={"action": "fail"},
        deferral={"maxTransferWait": DEADLINE, "maxStartWait": DEADLINE, "onTimeout": "fail"},
    )
    with copies_stand_still(gate) as let_go:
        pin = check_given_up(bench, name, ask(server, prompt, name))
        assert pin.peer.address == "host"
        # vLLM puts the look-up of blocks off that are being loaded already.
        check_put_off(bench, put_off, ask(server, prompt, put_off))
        assert usage(server) > 0
        others.check(texts, let_go)
    check_released(bench, server, name)
    again = new_name("load")
    assert ask(server, prompt, again).completion == expected
    assert bench.event("request_closed", again).request_closed.external_cached_tokens > 0
