"""An agent that is killed while it leads a roll-out: the next one goes on at its step, and no engine gets more than that."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import grpc
from penstock.agent.policy.manifest.engine_share import in_share
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import AgentProcess, short_directory, wait_until
from tests.support.policy.feed import Engine, eventually, hash_of
from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from collections.abc import Callable

ENGINES = 16
STEPS = (10, 35, 60, 100)


class _Held:
    """An engine that takes every push, and connects again to the next agent.

    Attributes:
        had: it has had the policy.

    """

    def __init__(self, agent: AgentProcess, number: int) -> None:
        self.place = f"decode-{number}"
        self.feed = Engine(agent.listen, str(number), POD_NAME=self.place)
        self.identity = f"/{self.place}//{number}"
        self.hash, self.had, self.pushed = "", False, False

    async def live(self) -> None:
        """Acknowledge each push until the stream ends."""
        self.pushed = False
        await self.feed.connect(hash_in_force=self.hash)
        try:
            while (push := await self.feed._stream.read()) is not grpc.aio.EOF:
                self.hash = hash_of(push)
                self.had = self.had or bool(self.hash)
                self.pushed = True
                await self.feed.ack(push)
        finally:
            await self.feed.disconnect()


class _Fleet:
    """An agent and its engines."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self.engines = [_Held(agent, number) for number in range(ENGINES)]
        self._lives: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Connect all engines to a new agent; each gets what is in force for it."""
        await asyncio.to_thread(self.agent.start)
        self._lives = [asyncio.ensure_future(engine.live()) for engine in self.engines]
        await eventually(lambda: all(engine.pushed for engine in self.engines), "each engine has its policy")

    async def kill(self) -> None:
        """Kill the agent; the engines keep what they have."""
        await asyncio.to_thread(self.agent.kill)
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    def ask(self, method: str, request: Any) -> Any:
        """Call the admin service."""
        with grpc.insecure_channel(self.agent.admin) as channel:
            return getattr(AdminStub(channel), method)(request, timeout=60)

    def order(self, action: str, **fields: Any) -> admin.PolicyRollout:
        """Order something about the roll-out."""
        found: admin.PolicyRollout = self.ask(
            "SetPolicyRollout", admin.SetPolicyRolloutRequest(name="p", action=action, author="me", **fields)
        )
        return found

    def status(self) -> admin.PolicyRollout:
        """Return the roll-out."""
        (found,) = self.ask("ListPolicyRollouts", admin.ListPolicyRolloutsRequest(name="p")).rollouts
        assert isinstance(found, admin.PolicyRollout)
        return found

    def check(self) -> admin.PolicyRollout:
        """Check that no engine has had the policy beyond the percentage, which never falls; return the roll-out."""
        had = {engine.identity for engine in self.engines if engine.had}
        found = self.status()
        assert had <= {
            engine.identity for engine in self.engines if in_share(engine.identity, "p", found.percent)
        }
        return found


async def _until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


async def test_a_killed_agent_goes_on_at_its_step() -> None:
    """It is killed right after the start and right after each step; nothing is forgotten, and nothing skipped."""
    with short_directory() as directory:
        fleet = _Fleet(AgentProcess(directory))
        async with AsyncExitStack() as parts:
            parts.push_async_callback(fleet.kill)
            await fleet.begin()
            policy = manifest(
                "p", selector={"matchLabels": {"role": "decode"}}, rollout={"percent": 0}
            ).canonical
            fleet.ask("ApplyPolicy", admin.ApplyPolicyRequest(manifest_json=policy, author="me"))
            await asyncio.to_thread(
                fleet.order, "start", steps=STEPS, hold={"nanos": 300_000_000}, proceed_undecided=True
            )
            for step, percent in enumerate(STEPS[:-1]):
                await _until(lambda: fleet.status().percent >= percent, f"the step of {percent} %")  # noqa: B023  (awaited)
                await fleet.kill()
                await fleet.begin()
                found = await asyncio.to_thread(fleet.check)
                # On a busy machine it may be further on.
                assert found.percent in STEPS[step:]
                assert (found.state == "promoted") == (found.percent == STEPS[-1])
                assert list(found.steps) == list(STEPS)
            await _until(lambda: fleet.status().state == "promoted", "the end")
            await eventually(lambda: all(engine.hash for engine in fleet.engines), "all engines have it")


async def test_a_kill_in_the_middle_of_an_abort() -> None:
    """The abort is stored as a whole or not at all; once it was answered, it is."""
    with short_directory() as directory:
        fleet = _Fleet(AgentProcess(directory))
        async with AsyncExitStack() as parts:
            parts.push_async_callback(fleet.kill)
            await fleet.begin()
            policy = manifest(
                "p", selector={"matchLabels": {"role": "decode"}}, rollout={"percent": 0}
            ).canonical
            fleet.ask("ApplyPolicy", admin.ApplyPolicyRequest(manifest_json=policy, author="me"))
            await asyncio.to_thread(fleet.order, "start", steps=(60, 100), hold={"seconds": 3600})
            await eventually(lambda: any(engine.hash for engine in fleet.engines), "the step is in force")
            aborting = asyncio.ensure_future(asyncio.to_thread(fleet.order, "abort"))
            await fleet.kill()
            answered = False
            with suppress(grpc.RpcError):
                answered = (await aborting).state == "aborted"
            await fleet.begin()
            found = await asyncio.to_thread(fleet.status)
            assert (found.state, found.percent) in {("aborted", 0), ("progressing", 60)}
            assert found.state == "aborted" or not answered
            if found.state == "progressing":
                await asyncio.to_thread(fleet.order, "abort")
            await fleet.kill()
            await fleet.begin()
            found = await asyncio.to_thread(fleet.status)
            assert (found.state, found.percent) == ("aborted", 0)
            await eventually(
                lambda: not any(engine.hash for engine in fleet.engines), "no engine has the policy"
            )
