"""The installed command against a real agent process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.ctl.commands.inspect.engines import _NO_ENGINE
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.batches import PEER, deferral_end
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.metric_logs import transfers
from tests.support.policy.feed import Engine, eventually, hash_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1.events_pb2 import Event

_OTHER = "10.0.0.8:5600"
_COMMAND = (sys.executable, "-c", "from penstock.agent.ctl.main import main; main()")


@pytest.fixture
def agent() -> Iterator[AgentProcess]:
    """Run an agent."""
    with running_agent() as running:
        yield running


async def _agentctl(agent: AgentProcess, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        *arguments,
        env={**os.environ, "AGENTCTL_ADDRESS": agent.admin},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def _serve(engine: Engine, hashes: list[str]) -> None:
    """Acknowledge every push until the stream ends; keep what is in force."""
    with contextlib.suppress(grpc.aio.AioRpcError, AssertionError, asyncio.CancelledError):
        while True:
            push = await engine.push()
            hashes.append(hash_of(push))
            await engine.ack(push)


async def test_a_policy_reaches_an_engine_and_outlives_the_agent(agent: AgentProcess) -> None:
    """After kill -9 of the agent, a reconnecting engine gets the same policy."""
    hashes: list[str] = []
    async with Engine(agent.listen) as engine:
        serving = asyncio.ensure_future(_serve(engine, hashes))
        await eventually(lambda: hashes == [""], "the engine was told that there is no policy")
        code, out, err = await _agentctl(
            agent, "set-policy", "p", "--kv-load-failure", "fail", "-l", "role=decode", "--wait"
        )
        assert (code, err) == (0, "")
        assert "in force: p (generation 1, by " in out
        agent.kill()
        await asyncio.wait_for(serving, 60)
    await asyncio.to_thread(agent.start)
    async with Engine(agent.listen) as engine:
        push = await engine.push()
        assert hash_of(push) == hashes[-1]
        await engine.ack(push)
        code, out, _ = await _agentctl(agent, "get", "policy", "-o", "json")
        assert (code, json.loads(out)["items"][0]["metadata"]["name"]) == (0, "p")


async def test_orders_outlive_the_agent(agent: AgentProcess) -> None:
    """After kill -9 of the agent, a reconnecting engine gets quarantine and drill with the remaining time."""
    able: dict[str, Any] = {"supported_fields": ["peer_quarantine"], "faults_allowed": True}
    engine = Engine(agent.listen)
    await engine.connect(**able)
    hashes: list[str] = []
    serving = asyncio.ensure_future(_serve(engine, hashes))
    await eventually(lambda: hashes == [""], "the engine has subscribed")
    for command in (
        ("quarantine", "add", "p:5600", "--ttl", "10m"),
        ("inject-fault", "--mode", "slow", "--delay", "2s", "--ttl", "5m", "-l", "role=decode"),
    ):
        code, out, err = await _agentctl(agent, *command)
        assert (code, "engine 0 acknowledged" in out) == (0, True), err
    agent.kill()
    await asyncio.wait_for(serving, 60)
    await engine.disconnect()
    await asyncio.to_thread(agent.start)
    await engine.connect(**able)
    push = await engine.push()
    assert [(order.peer, order.valid_for.seconds // 100) for order in push.quarantines] == [("p:5600", 5)]
    assert [(drill.delay.seconds, drill.valid_for.seconds // 100) for drill in push.drills] == [(2, 2)]
    await engine.ack(push)
    await engine.disconnect()


async def test_the_views_of_an_empty_agent(agent: AgentProcess) -> None:
    """An empty list exits with 0; an unknown request exits with 1."""
    assert await _agentctl(agent, "get", "engines") == (0, "", f"{_NO_ENGINE}\n")
    assert await _agentctl(agent, "get", "events") == (0, "", "no matching event in the log\n")
    code, _, err = await _agentctl(agent, "explain", "nothing")
    assert code == 1
    assert err.startswith("agentctl: ")
    agent.stop()
    code, _, err = await _agentctl(agent, "get", "engines")
    assert (
        code,
        err.startswith(f"agentctl: no agent answers at {agent.admin}: 'agentctl doctor' says why"),
    ) == (1, True)


def _wait(request_id: str, seconds: float, ago: float) -> Event:
    end = time.time_ns() - int(ago * 1e9)
    return deferral_end(request_id, start_ns=end - int(seconds * 1e9), time_ns=end)


async def _peers(agent: AgentProcess) -> list[dict[str, Any]]:
    code, out, err = await _agentctl(agent, "get", "peers", "-o", "json")
    assert (code, err) == (0, "")
    peers: list[dict[str, Any]] = json.loads(out)["peers"]
    return peers


async def test_a_slow_peer_is_seen_and_a_hanging_one_stands_before_it(agent: AgentProcess) -> None:
    """Peers from ingested batches; after kill -9 of the agent the last hour is still listed."""
    with FakeEngine(agent.listen) as engine:
        hour = [_wait(f"h{number}", 0.05, 1800 + number) for number in range(60)]
        engine.publish(*hour, *(_wait(f"s{number}", 6.6, 1) for number in range(5)))
        rows = [(54_000_000, 1 << 20, peer, TRANSFER_RESULT_OK) for peer in (PEER, _OTHER)]
        engine.publish_batch(transfers(rows, time_ns=time.time_ns()))
        (slow, other) = await _peers(agent)
        assert (slow["peer"]["address"], slow["condition"], other["condition"]) == (PEER, "slow", "ok")
        assert slow["waits"]["last15Minutes"]["count"] == 5
        assert slow["waits"]["last15Minutes"]["p50Seconds"] == pytest.approx(6.6, rel=0.26)
        assert slow["waits"]["hourBefore"]["p50Seconds"] == pytest.approx(0.05, rel=0.26)
        # The judge's words, or what the agent sees while its judgement is older than the waits.
        said = (f"peer {PEER} is slow: ", "p50 of waits ")
        assert slow["conditionReason"].startswith(said)
        assert other["transfers"]["last15Minutes"]["p99Seconds"] == pytest.approx(0.054, rel=0.26)
        agent.kill()
    await asyncio.to_thread(agent.start)
    with FakeEngine(agent.listen, epoch=engine.epoch) as back:
        begun = time.time_ns() - 12 * 10**9
        row = {"reason": 2, "count": 1, "oldest_start_time_unix_nano": begun, "peer": {"address": _OTHER}}
        back.snapshot(Snapshot(time_unix_nano=time.time_ns(), deferred=[row]))
        await asyncio.to_thread(
            wait_until, lambda: agent.metric("penstock_deferred_requests"), "the agent has the snapshot"
        )
        peers = await _peers(agent)
        assert [(peer["peer"]["address"], peer["condition"]) for peer in peers] == [
            (_OTHER, "hanging"),
            (PEER, "slow"),
        ]
        assert peers[1]["waits"]["hourBefore"]["count"] == 60
        code, out, _ = await _agentctl(agent, "top", "--count", "1", "--interval", "200ms")
        lines = [line.split() for line in out.splitlines() if line.startswith("10.0.0.")]
        assert (code, [line[:3] for line in lines]) == (
            0,
            [[_OTHER, "0", "hanging"], [PEER, "0", "slow"]],
        )
