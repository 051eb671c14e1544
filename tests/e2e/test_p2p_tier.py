"""Two engines whose P2P tiers move KV over real NIXL: loaded, with the source stopped, and with the source killed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.agent import Agent
from demo.common.client import complete
from demo.common.model import tiny_model
from demo.common.processes import free_port
from demo.common.steps import PROMPT, until
from demo.servers import ROOT, Server, ServerSpec
from tests.support.agent.agent import short_directory
from tests.support.engine.bench import AgentBench, new_name
from tests.support.engine.pairs import penstock_env
from tests.support.engine.versions import from_version
from tests.support.kv.peers import stopped
from tests.support.kv.tiering import p2p

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.client import Answer

pytestmark = [
    pytest.mark.engine,
    from_version(0, 32, "has a P2P tier whose sessions have no time-out"),
]

TOKENS = 8
NAME = "OffloadingConnector"
# It is a deadline of vLLM's own.
HANDSHAKE_SECONDS = "5"


class Sides(AgentBench):
    """The engine that loads, as the agent sees it, and the engine that has the KV."""

    def __init__(self, agent: Agent, source: Server, reader: Server, port: int) -> None:
        super().__init__(agent, "reader", labels={"role": "reader"}, policy="p2p")
        self.source, self.reader, self.port = source, reader, port
        self.address = f"127.0.0.1:{port}"

    def load(self, name: str, prompt: str, kind: str = "remote_kv_source") -> Answer:
        """Send a prompt to the reader that names the source."""
        where = {"kv_request_id": name, "remote_host": "127.0.0.1", "remote_port": self.port}
        return complete(
            self.reader.url,
            prompt,
            max_tokens=TOKENS,
            kv_transfer_params={kind: where},
            headers={"X-Request-Id": name},
            timeout=300.0,
        )

    def compute(self, prompt: str, params: dict[str, Any] | None = None) -> str:
        """Have the source compute a prompt, and return its answer."""
        answer = complete(
            self.source.url, prompt, max_tokens=TOKENS, kv_transfer_params=params, timeout=300.0
        )
        return answer.completion


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Run both engines and an agent."""
    logs = tmp_path_factory.mktemp("p2p")
    with short_directory() as state:
        agent = Agent(state, engines=2)
        agent.start()
        servers = []
        try:
            ports = [free_port(), free_port()]
            for name, port in zip(("source", "reader"), ports, strict=True):
                servers.append(_server(name, port, agent.endpoint, logs))
            for server in servers:
                server.wait_ready()
            found = Sides(agent, *servers, ports[0])
            yield found
            assert not found.guard_errors()
            found.close()
        finally:
            for server in servers:
                server.stop()
            agent.stop()


def _server(name: str, port: int, endpoint: str, logs: Path) -> Server:
    # Hashes of blocks agree only if the seed does.
    env = {
        "PENSTOCK_ENDPOINT": endpoint,
        "PYTHONHASHSEED": "0",
        "VLLM_P2P_HANDSHAKE_TIMEOUT_S": HANDSHAKE_SECONDS,
    }
    config = p2p(port, f"{name}-{os.getpid()}")
    args = ("--block-size", "32", "--kv-transfer-config", json.dumps(config))
    spec = ServerSpec(name, args=args, env=penstock_env(env, name))
    return Server(spec, model=tiny_model(ROOT / ".cache" / "models"), logs=logs)


def test_what_the_source_has_is_loaded(sides: Sides) -> None:
    """One transfer from the peer and one copy from memory; the answer is the one that is computed."""
    name, prompt = new_name("asked"), f"asked {PROMPT * 6}"
    text = sides.compute(prompt)
    assert sides.load(name, prompt).completion == text
    sides.event("request_closed", name)
    for peer in (sides.address, "host"):
        labels = {"connector": NAME, "direction": "receive", "result": "ok", "peer": peer}
        sides.wait_value(1, "penstock_transfers_total", **labels)
    assert sides.value("penstock_transfer_bytes_total", peer=sides.address) > 0
    assert sides.value("penstock_transfer_failures_total") == 0
    assert sides.address in sides.ctl("get", "peers")
    assert sides.address in sides.ctl("explain", name)


def test_what_was_prefilled_is_loaded(sides: Sides) -> None:
    """The same for a request that the source has prefilled."""
    name, prompt = new_name("prefilled"), f"prefilled {PROMPT * 6}"
    text = sides.compute(prompt, {"remote_decoder": {"kv_request_id": name}})
    assert sides.load(name, prompt, "remote_prefiller").completion == text
    closed = sides.event("request_closed", name).request_closed
    assert (closed.kv_role, closed.peer.address) == (c.ROLE_DECODE, sides.address)


def test_the_source_is_stopped(sides: Sides) -> None:
    """The session ends with the request's promotion; the request is computed here, and the failure has its peer."""
    name, prompt = new_name("stopped"), f"stopped {PROMPT * 6}"
    text = sides.compute(prompt)
    with stopped(sides.source):
        assert sides.load(name, prompt).completion == text
    failure = sides.event("transfer_failure", name).transfer_failure
    assert failure.peer.address == sides.address
    outcome = sides.event("load_outcome", name).load_outcome
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_VLLM)


def test_the_source_is_killed(sides: Sides) -> None:
    """A request that names an engine that is gone is computed here, with a failure of its own; then a quarantine applies."""
    name, prompt = new_name("killed"), f"killed {PROMPT * 6}"
    text = sides.compute(prompt)
    sides.source.child.kill_all()
    assert sides.load(name, prompt, "remote_prefiller").completion == text
    failure = sides.event("transfer_failure", name).transfer_failure
    assert failure.peer.address == sides.address
    sides.enforce(peerQuarantine={"failures": 1, "window": "60s", "duration": "60s"})
    again = new_name("again")
    sides.load(again, f"again {PROMPT * 6}", "remote_prefiller")
    kept = new_name("kept")
    until(lambda: sides.events("quarantine_changed"), "the source is not quarantined")
    sides.load(kept, f"kept {PROMPT * 6}", "remote_prefiller")
    outcome = sides.event("load_outcome", kept).load_outcome
    assert outcome.decided_by == c.DECIDED_BY_QUARANTINE
