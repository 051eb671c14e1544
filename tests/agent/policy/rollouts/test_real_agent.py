"""A real agent with 40 simulated engines: a bad policy aborts itself at its first step, and the others never had it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.policy.feed import eventually
from tests.support.policy.serving_engine import ServingEngine

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

ENGINES = 40
# More than it takes.
ROUNDS = 60


async def test_a_bad_policy_aborts_itself_in_a_real_agent() -> None:
    """Set up, started and read by agentctl; led by the agent alone."""
    with short_directory() as directory:
        agent = AgentProcess(directory).start()
        try:
            async with AsyncExitStack() as parts:
                await _abort(agent, parts)
        finally:
            agent.stop()


async def _abort(agent: AgentProcess, parts: AsyncExitStack) -> None:
    engines = [ServingEngine(agent, number) for number in range(ENGINES)]
    for engine in engines:
        await parts.enter_async_context(engine.feed)
        parts.enter_context(engine.ingest)
        task = asyncio.ensure_future(engine.obey())
        parts.callback(task.cancel)

    async def agentctl(*arguments: str) -> Result:
        runner = CliRunner(env={"AGENTCTL_ADDRESS": agent.admin})
        return await asyncio.to_thread(runner.invoke, cli, arguments)

    async def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (await agentctl("rollout", "status", "strict", "-o", "json")).stdout
        )
        return found

    prepared = await agentctl(
        "set-policy",
        "strict",
        "--kv-load-failure",
        "fail",
        "-l",
        "role=decode",
        "--rollout-percent",
        "0",
        "--wait",
    )
    assert prepared.exit_code == 0, prepared.output
    assert not any(engine.had for engine in engines)
    started = await agentctl(
        "rollout", "start", "strict", "--steps", "20,50,100", "--hold", "1h", "--abort-if", "failed>2x"
    )
    assert started.exit_code == 0, started.output
    first = (await status())["enginesSelected"]
    assert 3 <= first < ENGINES / 2
    await eventually(
        lambda: sum(bool(engine.hash) for engine in engines) == first, "the first step is in force"
    )
    for _ in range(ROUNDS):
        if (await status())["state"] != "progressing":
            break
        for engine in engines:
            await asyncio.to_thread(engine.serve)
    found = await status()
    assert (found["state"], found["percent"]) == ("aborted", 0)
    assert found["message"].startswith("aborted at 20 %: failed>2x: ")
    await eventually(lambda: not any(engine.hash for engine in engines), "the policy is taken back")
    assert sum(engine.had for engine in engines) == first
    entries = json.loads((await agentctl("rollout", "history", "strict", "-o", "json")).stdout)["entries"]
    assert next((entry["author"], entry["reason"]) for entry in entries) == ("rollout", found["message"])
    assert any(
        record.get("event") == "roll-out" and record.get("state") == "aborted" for record in agent.records()
    )


async def test_a_change_of_a_policy_in_force_in_a_real_agent(tmp_path: Path) -> None:
    """The engines of the step have the change, the others keep the policy; an abort gives it back, a promotion ends it."""
    with short_directory() as directory:
        agent = AgentProcess(directory).start()
        try:
            async with AsyncExitStack() as parts:
                await _change(agent, parts, tmp_path / "new.json")
        finally:
            agent.stop()


async def _change(agent: AgentProcess, parts: AsyncExitStack, file: Path) -> None:
    engines = [ServingEngine(agent, number) for number in range(16)]
    for engine in engines:
        await parts.enter_async_context(engine.feed)
        task = asyncio.ensure_future(engine.obey())
        parts.callback(task.cancel)

    async def agentctl(*arguments: str) -> str:
        runner = CliRunner(env={"AGENTCTL_ADDRESS": agent.admin})
        result = await asyncio.to_thread(runner.invoke, cli, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def hashes() -> set[str]:
        return {engine.hash for engine in engines}

    await agentctl("set-policy", "base", "--kv-load-failure", "recompute", "-l", "role=decode", "--wait")
    await eventually(lambda: len(hashes()) == 1 and "" not in hashes(), "the policy is in force")
    (old,) = hashes()
    document = json.loads(await agentctl("get", "policy", "base", "-o", "json"))
    document["spec"]["kvLoadFailure"] = {"action": "fail"}
    await asyncio.to_thread(file.write_text, json.dumps(document))
    start = ("rollout", "start", "base", "-f", str(file), "--steps", "40,100", "--hold", "1h")
    said = await agentctl(*start)
    assert said.startswith("rollout of base progressing, 40 %: ")
    share = json.loads(await agentctl("rollout", "status", "base", "-o", "json"))
    assert share["changes"]
    count = share["enginesSelected"]
    assert 0 < count < len(engines)
    await eventually(
        lambda: sum(engine.hash != old for engine in engines) == count, "the change is in its share"
    )
    assert len(hashes()) == 2
    assert "its candidate in 40 %" in await agentctl("get", "policy", "base")
    await agentctl("rollout", "abort", "base")
    await eventually(lambda: hashes() == {old}, "all engines have the policy as it was")
    await agentctl(*start)
    await agentctl("rollout", "promote", "base")
    await eventually(lambda: len(hashes()) == 1 and old not in hashes(), "all engines have the change")
    document = json.loads(await agentctl("get", "policy", "base", "-o", "json"))
    assert document["spec"]["kvLoadFailure"] == {"action": "fail"}
    assert "rollout" not in document["spec"]
