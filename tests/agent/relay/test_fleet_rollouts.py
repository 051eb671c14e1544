"""A bad policy of a bucket aborts itself over real agents, led by a real relay; when that is killed, by the other."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from nats.js.api import KeyValueConfig

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.relay import RelayProcess
from tests.support.nats.server import NatsServer
from tests.support.policy.feed import eventually
from tests.support.policy.serving_engine import ServingEngine

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

AGENTS, ENGINES = 4, 5
ROUNDS = 120


def _holds(relay: RelayProcess) -> bool:
    if relay.process is None:
        return False
    (started,) = [json.loads(line) for line in relay.log().splitlines() if '"relay started"' in line]
    with urllib.request.urlopen(f"http://{started['http']}/metrics", timeout=60) as answer:
        return b"penstock_relay_lease_held 1.0" in answer.read()


async def _create(server: NatsServer) -> None:
    async with await server.client() as client:
        await client.jetstream().create_key_value(KeyValueConfig(bucket="policies", history=64))


async def test_a_bad_policy_aborts_itself_over_a_fleet(tmp_path: Path) -> None:
    """The engines outside of its first step never had it; the leading relay is killed at that step."""
    async with AsyncExitStack() as parts:
        server = NatsServer(tmp_path / "nats").start()
        parts.callback(server.kill)
        await _create(server)
        source = f"--policy-source={server.url}/policies"
        agents = {
            f"pod-{number}": parts.enter_context(
                running_agent([source], {"POD_NAME": f"pod-{number}", "POD_NAMESPACE": "vllm"})
            )
            for number in range(AGENTS)
        }
        engines = [ServingEngine(agent, number) for agent in agents.values() for number in range(ENGINES)]
        for engine in engines:
            await parts.enter_async_context(engine.feed)
            parts.enter_context(engine.ingest)
            task = asyncio.ensure_future(engine.obey())
            parts.callback(task.cancel)
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        relays = []
        for _ in range(2):
            directory = parts.enter_context(short_directory())
            relay = RelayProcess(directory, f"--agents={listed}", source)
            parts.callback(relay.stop)
            await asyncio.to_thread(relay.start)
            await asyncio.to_thread(relay.wait_for, **dict.fromkeys(agents, "up"))
            relays.append(relay)

        async def agentctl(*arguments: str) -> Result:
            return await asyncio.to_thread(relays[-1].agentctl, *arguments)

        async def status() -> dict[str, Any]:
            said = await agentctl("rollout", "status", "strict", "-o", "json")
            assert said.exit_code == 0, said.output
            found: dict[str, Any] = json.loads(said.stdout)
            return found

        prepared = await agentctl(
            *("set-policy", "strict", "--kv-load-failure", "fail", "-l", "role=decode"),
            *("--rollout-percent", "0", "--wait"),
        )
        assert prepared.exit_code == 0, prepared.output
        started = await agentctl(
            "rollout", "start", "strict", "--steps", "25,100", "--hold", "1h", "--abort-if", "failed>2x"
        )
        assert started.exit_code == 0, started.output
        first = (await status())["enginesSelected"]
        assert 2 <= first < AGENTS * ENGINES / 2
        await eventually(
            lambda: sum(bool(engine.hash) for engine in engines) == first, "the first step is in force"
        )
        # Who is left is the one that is asked.
        relays.sort(key=lambda each: not _holds(each))
        await asyncio.to_thread(wait_until, lambda: any(_holds(relay) for relay in relays), "a relay leads")
        relays.sort(key=lambda each: not _holds(each))
        await asyncio.to_thread(relays[0].stop, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: _holds(relays[1]), "the other relay leads")
        for _ in range(ROUNDS):
            if (await status())["state"] != "progressing":
                break
            for engine in engines:
                await asyncio.to_thread(engine.serve)
        found = await status()
        assert (found["state"], found["percent"]) == ("aborted", 0), found
        assert found["message"].startswith("aborted at 25 %: failed>2x: ")
        await eventually(lambda: not any(engine.hash for engine in engines), "the policy is taken back")
        assert sum(engine.had for engine in engines) == first
