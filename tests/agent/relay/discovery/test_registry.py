"""Real agents keep their address in a registry of a real nats-server, where a real relay finds them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.support.agent.agent import AgentProcess, short_directory, wait_until
from tests.support.agent.certificates import Authority
from tests.support.agent.relay import running_relay
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from pathlib import Path


def test_agents_come_and_go(tmp_path: Path) -> None:
    """One that ends leaves at once; one that is killed stays away until its entry expires; none is lost with the server."""
    authority = Authority(tmp_path / "pki")
    files = authority.issue("localhost", file="server")
    relay_files = authority.issue("relay", common_name="relay")
    with short_directory() as directory, ExitStack() as parts:
        server = NatsServer(tmp_path / "nats").start()
        parts.callback(server.kill)
        registry = f"{server.url}/agents"
        agents = {}
        for name in ("one", "two"):
            (directory / name).mkdir()
            agents[name] = AgentProcess(
                directory / name,
                [
                    "--admin-listen=localhost:0",
                    f"--admin-tls-cert={files.cert}",
                    f"--admin-tls-key={files.key}",
                    f"--admin-tls-client-ca={authority.cert}",
                    "--admin-allow=relay=read",
                    f"--registry={registry}",
                    f"--agent-name={name}",
                ],
            )
            parts.callback(agents[name].stop)
            agents[name].start()
        relay = parts.enter_context(
            running_relay(
                directory,
                f"--agents={registry}",
                f"--agent-tls-ca={authority.cert}",
                f"--agent-tls-cert={relay_files.cert}",
                f"--agent-tls-key={relay_files.key}",
            )
        )
        relay.wait_for(one="up", two="up")
        port = json.loads((agents["one"].state_dir / "addresses.json").read_text())["admin_tcp"]
        assert {each.name: each.address for each in relay.status().agents}["one"] == port
        agents["two"].stop()
        wait_until(
            lambda: [each.name for each in relay.status().agents] == ["one"], "the agent that ended is gone"
        )
        server.kill()
        wait_until(
            lambda: "its last agents stay" in relay.status().degraded,
            "the relay says that the registry is away",
        )
        assert relay.agentctl("get", "engines").exit_code == 0
        wait_until(
            lambda: agents["one"].metric("penstock_agent_degraded", reason="registry_away") == 1, "degraded"
        )
        server.start()
        wait_until(lambda: relay.status().degraded == "", "the registry is read again")
        wait_until(
            lambda: agents["one"].metric("penstock_agent_degraded", reason="registry_away") == 0, "well"
        )
