"""What an engine's snapshots say of its queue: a prefill engine over NIXL whose cache is full of leases that nobody reads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import snapshot_pb2 as wire

from demo.common.client import post_json
from demo.common.model import tiny_model
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.agent.fake_agent import FakeAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1.snapshot_pb2 import Snapshot

    from demo.common.client import Answer

pytestmark = pytest.mark.engine

_SECONDS = 300
_BLOCK = 32
_BLOCKS = 20
"""One of them is vLLM's null block; a request of the greatest length just fits."""
_TOKENS = 10 * _BLOCK
_FREE = _BLOCKS - 1 - _TOKENS // _BLOCK
_PARAMS: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture(scope="module")
def agent() -> Iterator[FakeAgent]:
    """Take what the engine sends."""
    with short_directory() as directory:
        found = FakeAgent(f"unix://{directory}/ingest.sock").start()
        yield found
        found.stop()


@pytest.fixture(scope="module")
def server(agent: FakeAgent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start one prefill engine with a small cache."""
    spec = ServerSpec(
        "queue",
        "kv_producer",
        args=(
            "--max-model-len",
            "512",
            "--block-size",
            str(_BLOCK),
            "--num-gpu-blocks-override",
            str(_BLOCKS),
        ),
        env={
            "PENSTOCK_ENDPOINT": agent.listen,
            "PENSTOCK_SERVER": "queue",
            "PENSTOCK_LABELS": "role=prefill",
        },
    )
    started = Server(
        spec, model=tiny_model(ROOT / ".cache" / "models"), logs=tmp_path_factory.mktemp("queue")
    )
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


def _prefill(server: Server, first: int) -> Answer:
    body = {
        "prompt": [first] + [20 + index % 200 for index in range(_TOKENS - 1)],
        "max_tokens": 1,
        "ignore_eos": True,
        "kv_transfer_params": _PARAMS,
    }
    return post_json(f"{server.url}/v1/completions", body, timeout=_SECONDS)


def _last(agent: FakeAgent) -> Snapshot:
    """Return the newest snapshot of the EngineCore; an empty one before the first."""
    found = [each for each in list(agent.received.snapshots) if each.HasField("queue")]
    return found[-1] if found else wire.Snapshot()


def test_a_cache_full_of_leases(agent: FakeAgent, server: Server) -> None:
    """Nobody runs, two wait for blocks: who waits, since when, and who has the blocks."""
    assert _prefill(server, 10).status == 200
    with ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(_prefill, server, first) for first in (11, 12)]
        agent.wait(
            lambda: [row.count for row in _last(agent).queue.waiting] == [2], "two requests wait", _SECONDS
        )
        snapshot = _last(agent)
        queue = snapshot.queue
        (row,) = queue.waiting
        assert (queue.running, row.reason) == (0, wire.QUEUE_REASON_CAPACITY)
        assert (queue.total_blocks, queue.free_blocks) == (_BLOCKS - 1, _FREE)
        assert (snapshot.leases.count, snapshot.leases.blocks) == (1, _TOKENS // _BLOCK)
        assert [each.prompt_tokens for each in queue.requests] == [_TOKENS, _TOKENS]
        assert row.oldest_start_time_unix_nano == queue.requests[0].arrival_time_unix_nano
        assert queue.last_step_tokens
        assert queue.empty_steps
        assert [each.missing_parts for each in snapshot.hooks if each.name == "scheduler"] == [[]]
        assert not agent.received.guard_errors()
        # Leases last for minutes.
        server.stop()
        for each in waiting:
            each.exception(_SECONDS)
