"""A prefill engine that accepts requests and runs none: leases that nobody reads have its cache."""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import QUEUE_REASON_CAPACITY, SchedulerQueue

from demo.common.agent import Agent
from demo.common.client import prefill
from demo.common.model import tiny_model
from demo.common.steps import until
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, wait_known
from tests.support.engine.pairs import penstock_env

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine

# Eight blocks of 128 tokens beside vLLM's null block; a prompt takes two.
_BLOCKS, _LEASES = 9, 4
_CONNECTOR = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_producer",
    "kv_buffer_device": "cpu",
    "kv_connector_extra_config": {"kv_lease_duration": 600},
}
_ARGS = ("--max-model-len", "512", "--num-gpu-blocks-override", str(_BLOCKS), "--no-enable-prefix-caching")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Agent, Server]]:
    """Run an agent and a prefill engine with a small cache."""
    args = ("--kv-transfer-config", json.dumps(_CONNECTOR), *_ARGS)
    with short_directory() as directory:
        agent = Agent(directory)
        agent.start()
        env = penstock_env({"PENSTOCK_ENDPOINT": agent.endpoint}, "prefill")
        server = Server(
            ServerSpec("prefill", args=args, env=env),
            model=tiny_model(ROOT / ".cache" / "models"),
            logs=tmp_path,
        )
        try:
            server.wait_ready()
            wait_known(agent, "prefill")
            yield agent, server
        finally:
            server.stop()
            agent.stop()


def _prompt(number: int) -> str:
    return f"{number} " + "many words of a long prompt " * 12


def _send(server: Server, number: int) -> None:
    """Send a prefill that still waits when the server ends: answered or cut off, as vLLM has it."""

    def run() -> None:
        with suppress(OSError, ValueError):
            prefill(server.url, _prompt(number), timeout=600)

    threading.Thread(target=run, daemon=True).start()


def test_a_cache_full_of_leases(engine: tuple[Agent, Server]) -> None:
    """Both requests that wait are listed; the engine is a cause within seconds, with who holds its cache."""
    agent, server = engine
    bench = AgentBench(agent, "prefill", labels={"role": "prefill"}, policy="full-cache")
    ask = bench.admin

    def queue() -> SchedulerQueue:
        return ask.ListEngines(admin.ListEnginesRequest()).engines[0].queue

    for number in range(_LEASES):
        assert prefill(server.url, _prompt(number)).completion
    for number in range(_LEASES, _LEASES + 2):
        _send(server, number)

    def waiting() -> list[int]:
        return [row.count for row in queue().waiting if row.reason == QUEUE_REASON_CAPACITY]

    until(lambda: waiting() == [2], lambda: f"Two requests do not wait for blocks: {queue()}")

    (known,) = ask.ListEngines(admin.ListEnginesRequest()).engines
    now = known.queue
    assert (now.running, now.total_blocks, now.free_blocks) == (0, _BLOCKS - 1, 0)
    assert (known.leases.count, known.leases.blocks) == (_LEASES, _BLOCKS - 1)
    assert now.last_step_tokens
    assert now.empty_steps

    def causes() -> list[admin.DiagnosedCause]:
        found = ask.Diagnose(admin.DiagnoseRequest()).causes
        return [each for each in found if each.kind == "no_capacity"]

    found = until(causes, "It is no cause")
    assert re.search(
        r"nothing runs: 2 requests wait for KV blocks, .*leases hold \d+ % of the cache", found[0].sentence
    )
    listed = agent.ctl("get", "requests", "--queued").output
    assert listed.count("waits for capacity") == 2, listed
    assert "2 wait for the scheduler (2 capacity)" in agent.ctl("get", "requests", "--deferred").output
    assert not bench.guard_errors()
