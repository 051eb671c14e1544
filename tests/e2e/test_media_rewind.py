"""A KV load that fails behind a picture, on an engine with vLLM's own model runner: with a policy, and without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.processes import ChildError
from demo.common.vision_model import tiny_vision_model
from demo.servers import ROOT, Server, ServerSpec
from tests.support.ec.bench import EcBench, ask
from tests.support.ec.files import truncate
from tests.support.ec.stacks import agent_with_backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.agent import Agent
    from tests.support.ec.bench import Ask

pytestmark = pytest.mark.engine

NAME = "pictures"


class Bench(EcBench):
    """A server of a model that sees, whose prompts' KV is loaded from files in the step itself."""

    def __init__(self, agent: Agent, server: Server, store: Path) -> None:
        super().__init__(agent, server)
        self._store = store

    def stored(self, *requests: Ask) -> list[tuple[int, ...]]:
        """Have *requests* computed and saved, then forget all but the files; return their tokens."""
        tokens = [self.send(request.again()).tokens for request in requests]
        self.empty()
        return tokens

    def files(self) -> set[Path]:
        """Return the files that there are."""
        return set(self._store.rglob("*.safetensors"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run agent and server."""
    root = tmp_path_factory.mktemp("media-rewind")
    store = root / "store"
    store.mkdir()
    transfer = {
        "kv_connector": "TolerantExampleConnector",
        "kv_connector_module_path": "tests.support.kv.tolerant_connector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"shared_storage_path": str(store)},
    }
    with agent_with_backend(engines=1) as (agent, _):
        spec = ServerSpec(
            NAME,
            args=("--kv-transfer-config", json.dumps(transfer), "--block-size", "32"),
            env={
                "VLLM_SERVER_DEV_MODE": "1",
                "PENSTOCK_ENDPOINT": agent.endpoint,
                "PENSTOCK_SERVER": NAME,
                "PENSTOCK_LABELS": f"tier={NAME}",
            },
        )
        server = Server(spec, model=tiny_vision_model(ROOT / ".cache" / "models"), logs=root)
        found = Bench(agent, server, store)
        try:
            server.wait_ready()
            yield found
        finally:
            found.close()
            server.stop()


def _broken(bench: Bench, request: Ask) -> tuple[int, ...]:
    """Have *request* saved, and cut its files short; return the tokens of a run without failure."""
    before = bench.files()
    (expected,) = bench.stored(request)
    assert bench.files() > before
    for file in bench.files() - before:
        truncate(file)
    return expected


def test_a_load_that_is_there(bench: Bench) -> None:
    """The picture is loaded with the prompt and not encoded."""
    request = ask()
    (expected,) = bench.stored(request)
    answer = bench.send(request)
    assert answer.tokens == expected
    assert bench.closed(request).request_closed.external_cached_tokens > 0
    assert not bench.events("load_outcome", request.name)


def test_a_policy_has_it_computed_again(bench: Bench) -> None:
    """The worker encodes the picture that vLLM would have left out, and the tokens are right."""
    request = ask()
    expected = _broken(bench, request)
    bench.enforce(kvLoadFailure={"action": "recompute"})
    assert bench.send(request).tokens == expected
    outcome = bench.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert outcome.tokens_recomputed > 0
    assert not bench.guard_errors()


def test_without_a_policy_the_engine_ends(bench: Bench) -> None:
    """VLLM's own recompute, to the letter: "Encoder cache miss". The last test, therefore."""
    bench.forget()
    request = ask()
    _broken(bench, request)
    assert bench.send(request).status == 500
    with pytest.raises(ChildError):
        bench.engine.child.wait_until(lambda: False, seconds=120, what="serving again")
    assert not bench.engine.child.running
    assert "Encoder cache miss" in bench.engine.child.log.read_text()
