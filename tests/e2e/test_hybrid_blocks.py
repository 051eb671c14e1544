"""A connector that tells blocks, on an engine whose KV cache has several groups: with a policy, and without one, where the engine ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.client import complete
from demo.common.processes import ChildError
from demo.ec.servers import forget_all
from demo.servers import API_SERVER, ROOT, Server, ServerSpec
from tests.support.ec.stacks import agent_with_backend
from tests.support.engine.bench import AgentBench, new_name
from tests.support.engine.hybrid_model import WINDOW, hybrid_model
from tests.support.engine.mamba_model import mamba_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.common.client import Answer

pytestmark = [pytest.mark.engine, pytest.mark.long]

NAME = "hybrid"
BLOCK = 32
CLAIMED = 3 * WINDOW
"""Tokens whose KV the connector claims: the first blocks of them are behind the sliding window."""


class Bench(AgentBench):
    """A server of a hybrid model, whose loads all fail."""

    def __init__(self, agent: Agent, server: Server) -> None:
        super().__init__(agent, NAME, labels={"tier": NAME}, policy="hybrid-tests")
        self.engine = server

    def send(self, name: str, prompt: str, params: dict[str, Any] | None = None) -> Answer:
        """Send *prompt*, to be loaded by *params* if they are given."""
        headers = {"X-Request-Id": name}
        return complete(self.engine.url, prompt, kv_transfer_params=params, headers=headers, timeout=120.0)

    def text_of(self, prompt: str) -> str:
        """Return what the server answers when it has nothing of *prompt* and loads nothing."""
        forget_all(self.engine)
        return self.send(new_name("plain"), prompt).completion


@dataclass(frozen=True)
class Hybrid:
    """A model, and how its server is started."""

    model: Callable[[Path], Path]
    args: tuple[str, ...] = ()
    module: str = API_SERVER


HYBRIDS = {
    "window": Hybrid(hybrid_model),
    "mamba": Hybrid(mamba_model, module="tests.support.engine.mamba_server"),
    # One block holds the state of a whole request.
    "mamba without prefixes": Hybrid(mamba_model, args=("--no-enable-prefix-caching",)),
}
"""Full attention, and beside it a sliding window or a Mamba state."""


@pytest.fixture(scope="module", params=HYBRIDS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run agent and server, for each of the models."""
    hybrid = HYBRIDS[request.param]
    transfer = {
        "kv_connector": "ClaimingConnector",
        "kv_connector_module_path": "tests.support.kv.claiming_connector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": "recompute",
    }
    with agent_with_backend(engines=1) as (agent, _):
        spec = ServerSpec(
            NAME,
            module=hybrid.module,
            args=("--kv-transfer-config", json.dumps(transfer), "--block-size", str(BLOCK), *hybrid.args),
            env={
                "VLLM_SERVER_DEV_MODE": "1",
                "PENSTOCK_ENDPOINT": agent.endpoint,
                "PENSTOCK_SERVER": NAME,
                "PENSTOCK_LABELS": f"tier={NAME}",
            },
        )
        root = tmp_path_factory.mktemp(NAME)
        server = Server(spec, model=hybrid.model(ROOT / ".cache" / "models"), logs=root)
        found = Bench(agent, server)
        try:
            server.wait_ready()
            yield found
        finally:
            found.close()
            server.stop()


def prompt(number: int) -> str:
    """Return a prompt of more than :data:`CLAIMED` tokens that begins like no other."""
    return f"{number} " * 8 + "The gate of a penstock regulates the flow at the head of a channel. " * 12


def claims(*, waits: bool) -> dict[str, Any]:
    """Return parameters of a load that will fail."""
    return {"claims": CLAIMED, **({"waits": True} if waits else {})}


@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
def test_a_policy_has_it_computed(waits: bool, bench: Bench) -> None:
    """The tokens are those of a run without a load, for the request and for one that shares its prefix."""
    bench.enforce(kvLoadFailure={"action": "recompute"})
    asked, name = prompt(1 + waits), new_name("claims")
    answer = bench.send(name, asked, claims(waits=waits))
    sharer = bench.send(new_name("sharer"), f"{asked}And so on.").completion
    event = bench.event("load_outcome", name)
    outcome = event.load_outcome
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert outcome.tokens_recomputed >= CLAIMED
    assert answer.completion == bench.text_of(asked)
    assert sharer == bench.text_of(f"{asked}And so on.")
    assert not bench.guard_errors()


@pytest.mark.parametrize("waits", [False, True], ids=["in the step", "waiting"])
def test_a_policy_has_it_fail(waits: bool, bench: Bench) -> None:
    """The client gets a 503 with the reason, and the next request is served with the right tokens."""
    bench.enforce(kvLoadFailure={"action": "fail"})
    asked, name = prompt(3 + waits), new_name("claims")
    answer = bench.send(name, asked, claims(waits=waits))
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.body["error"]["message"].startswith("KV load failure (")
    assert answer.body["error"]["message"].endswith("The request can be retried.")
    outcome = bench.event("load_outcome", name).load_outcome
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_POLICY)
    following = bench.send(new_name("next"), asked).completion
    assert following == bench.text_of(asked)


def test_without_a_policy_the_engine_ends(bench: Bench) -> None:
    """VLLM's own behaviour, to the letter. The last test of a model, therefore."""
    bench.forget()
    assert bench.send(new_name("claims"), prompt(5), claims(waits=False)).status == 500
    with pytest.raises(ChildError):
        bench.engine.child.wait_until(lambda: False, seconds=120, what="serving again")
    assert not bench.engine.child.running
    assert "multiple KV cache groups" in bench.engine.child.log.read_text()
