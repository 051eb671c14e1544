"""The relay over mutual TLS, on both of its sides."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.agent import AgentProcess, short_directory, wait_until
from tests.support.agent.certificates import Authority, Files
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import running_relay

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def _tls(prefix: str, authority: Authority, files: Files) -> list[str]:
    return [f"--{prefix}-cert={files.cert}", f"--{prefix}-key={files.key}"] + (
        [f"--{prefix}-client-ca={authority.cert}"]
        if prefix == "admin-tls"
        else [f"--{prefix}-ca={authority.cert}"]
    )


def _admin_tcp(agent: AgentProcess) -> str:
    found: str = json.loads((agent.state_dir / "addresses.json").read_text())["admin_tcp"]
    return found


def test_a_wrong_certificate_is_one_missing_agent() -> None:
    """An agent of another authority costs its own row, and the relay says that it is the certificate."""
    with short_directory() as directory, ExitStack() as parts:
        authority, other = Authority(directory / "pki"), Authority(directory / "other")
        listed = []
        for name, signer in (("good", authority), ("bad", other)):
            (directory / name).mkdir()
            tls = _tls("admin-tls", authority, signer.issue("localhost", file="server"))
            agent = AgentProcess(
                directory / name, ["--admin-listen=localhost:0", *tls, "--admin-allow=relay=read"]
            )
            parts.callback(agent.stop)
            agent.start()
            listed.append(f"{name}={_admin_tcp(agent)}")
        own = authority.issue("relay", common_name="relay")
        relay = parts.enter_context(
            running_relay(directory, f"--agents={','.join(listed)}", *_tls("agent-tls", authority, own))
        )
        relay.wait_for(good="up", bad="away")
        # On a busy machine the attempt may not have failed yet when the answer is due.
        wait_until(
            lambda: (
                "1 of 2 agents answered; not: bad (cannot be reached: TLS: "
                in relay.agentctl("get", "engines").stderr
            ),
            "the relay says that it is the certificate",
        )
        answer = relay.agentctl("get", "engines")
        assert answer.exit_code == 0, answer.stderr


def test_roles_and_names_of_dns(tmp_path: Path) -> None:
    """The relay checks its callers' roles; the agents' audit log has the relay and who asked it."""
    authority = Authority(tmp_path / "pki")
    server = authority.issue("localhost", file="server")
    people = {name: authority.issue(name, common_name=name) for name in ("ops", "grafana", "nobody", "relay")}
    with short_directory() as directory, ExitStack() as parts:
        served = _tls("admin-tls", authority, server)
        agent = AgentProcess(directory, ["--admin-listen=127.0.0.1:0", *served, "--admin-allow=relay=write"])
        parts.callback(agent.stop)
        agent.start()
        address = _admin_tcp(agent)
        relay = parts.enter_context(
            running_relay(
                directory,
                f"--agents=dns:{address}",
                f"--admin-listen=unix://{directory}/relay.sock,localhost:0",
                "--agent-tls-server-name=localhost",
                *_tls("agent-tls", authority, people["relay"]),
                *served,
                "--admin-allow=ops=write,grafana=read",
            )
        )
        relay.wait_for(**{address: "up"})
        (started,) = [line for line in relay.log().splitlines() if "relay started" in line]

        def ask(name: str, *arguments: str) -> Result:
            files = people[name]
            flags = [f"--tls-ca={authority.cert}", f"--tls-cert={files.cert}", f"--tls-key={files.key}"]
            place = f"--address={json.loads(started)['admin_tcp']}"
            return CliRunner().invoke(cli, [place, *flags, *arguments])

        with FakeEngine(agent.listen):
            wait_until(
                lambda: f"{address}/0" in ask("grafana", "get", "engines").stdout, "the engine is listed"
            )
            refused = ask("grafana", "pause")
            assert refused.exit_code == 1
            assert "write access" in refused.stderr
            unknown = ask("nobody", "get", "engines")
            assert unknown.exit_code == 1
            ask("ops", "pause", "--timeout", "1s", "--reason", "test")
        entries = json.loads(ask("ops", "get", "audit", "-o", "json").stdout)["entries"]
        assert entries[0]["author"].startswith("tls:relay (relay: tls:ops")
