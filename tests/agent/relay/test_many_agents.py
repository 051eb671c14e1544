"""Many agents and engines behind one relay, with one agent that hangs, one that refuses and one with a wrong certificate."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from nats.js.api import KeyValueConfig

from tests.support.agent.agent import AgentProcess, short_directory, wait_until
from tests.support.agent.certificates import Authority
from tests.support.agent.relay import RelayProcess, running_relay
from tests.support.fleet.many import ManyAgents
from tests.support.nats.server import NatsServer
from tests.support.policy.policies import document
from tests.support.stop import stop

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from tests.support.agent.certificates import Files

ENGINES = 2
SPECIAL = ("hung", "refusing", "wrong")


async def _bucket(server: NatsServer) -> None:
    stays = document("stays", selector={"matchLabels": {"role": "no"}})
    async with await server.client() as client:
        bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=8))
        # An emptied bucket is looked at twice, ten seconds apart.
        await bucket.put("stays", json.dumps(stays).encode())


def _over_tls(authority: Authority, files: Files, allow: str) -> list[str]:
    return [
        "--admin-listen=localhost:0",
        f"--admin-tls-cert={files.cert}",
        f"--admin-tls-key={files.key}",
        f"--admin-tls-client-ca={authority.cert}",
        f"--admin-allow={allow}",
    ]


def _special(
    parts: ExitStack, directory: Path, pki: Path, source: str
) -> tuple[dict[str, AgentProcess], list[str]]:
    """Start the three agents; return them, and the relay's flags for them."""
    authority, other = Authority(pki / "own"), Authority(pki / "other")
    flags = {
        "hung": [source],
        "refusing": [source, *_over_tls(authority, authority.issue("localhost", file="a"), "somebody=read")],
        "wrong": [source, *_over_tls(authority, other.issue("localhost", file="b"), "relay=read")],
    }
    agents = {}
    for name, own in flags.items():
        (directory / name).mkdir()
        agents[name] = AgentProcess(directory / name, own)
        parts.callback(agents[name].stop)
        agents[name].start()
    listed = [f"hung={agents['hung'].admin}"]
    for name in ("refusing", "wrong"):
        address = json.loads((agents[name].state_dir / "addresses.json").read_text())["admin_tcp"]
        listed.append(f"{name}={address}")
    files = authority.issue("relay", common_name="relay")
    tls = [
        f"--agent-tls-ca={authority.cert}",
        f"--agent-tls-cert={files.cert}",
        f"--agent-tls-key={files.key}",
    ]
    return agents, [",".join(listed), *tls]


def _listed(answer: Result) -> set[str]:
    assert answer.exit_code == 0, answer.stderr
    return {line.split()[0] for line in answer.stdout.splitlines()[1:]}


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long)])
def test_one_hangs_one_refuses_one_has_a_wrong_certificate(count: int, tmp_path: Path) -> None:
    """Each is named with its reason; all other engines are listed, and get each change of a policy."""
    with short_directory() as directory, ExitStack() as parts:
        server = NatsServer(tmp_path / "nats").start()
        parts.callback(server.kill)
        asyncio.run(_bucket(server))
        source = f"--policy-source={server.url}/policies"
        many = ManyAgents(directory, count, source, engines=ENGINES)
        parts.callback(many.stop)
        many.start()
        agents, (listed, *tls) = _special(parts, directory, tmp_path, source)
        relay = parts.enter_context(
            running_relay(directory, f"--agents={many.listed},{listed}", source, *tls)
        )
        states = {**dict.fromkeys(many.names, "up"), "hung": "up", "refusing": "away", "wrong": "away"}
        relay.wait_for(**states)
        process = agents["hung"].process
        assert process is not None
        stop(process.pid)
        parts.callback(process.send_signal, signal.SIGCONT)
        engines = {f"{name}/{number}" for name in many.names for number in range(ENGINES)}

        def complete() -> bool:
            # On a loaded machine another may need more than a list's time once.
            answer = relay.agentctl("get", "engines")
            return _listed(answer) == engines and _names_the_three(answer.stderr, count)

        wait_until(complete, "all others are listed")
        for action in ("fail", "recompute"):
            _change(relay, many, action)


def _names_the_three(stderr: str, count: int) -> bool:
    return all(
        part in stderr
        for part in (
            f"{count} of {count + len(SPECIAL)} agents answered; not: ",
            "hung (no answer in ",
            "refusing (refuses this relay: ",
            "wrong (cannot be reached: TLS: ",
        )
    )


def _change(relay: RelayProcess, many: ManyAgents, action: str) -> None:
    """Write a policy, and wait until each engine has it: one hash, which the agents say is this action."""
    before = {each.hash for each in many.in_force.values()}
    command = ("set-policy", "all", "--selector=role=decode", f"--kv-load-failure={action}")
    # On a loaded machine NATS may not answer in time.
    wait_until(lambda: relay.agentctl(*command).exit_code == 0, "the policy is written")
    wait_until(
        lambda: len(now := {each.hash for each in [*many.in_force.values()]}) == 1 and not now & before,
        "one new policy is in force everywhere",
    )
    described = ("describe", "engine", f"{many.names[-1]}/0")
    wait_until(
        lambda: f"kvLoadFailure.action = {action}, by policy all" in relay.agentctl(*described).stdout,
        "the agent says that it is this action",
    )
