"""Engines that have gone, in a real agent."""

from __future__ import annotations

import grpc
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import HASTY_AGENT, AgentProcess, running_agent, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine


def _engines(agent: AgentProcess) -> list[admin.Engine]:
    with grpc.insecure_channel(agent.admin) as channel:
        return list(AdminStub(channel).ListEngines(admin.ListEnginesRequest(), timeout=60).engines)


def test_an_engine_is_forgotten_after_its_time_and_for_good() -> None:
    """Nothing of it is left on /metrics or in a list, not even after the agent was killed; others stay."""
    with running_agent(["--retire-after=500ms", "--source-grace=50ms"], module=HASTY_AGENT) as agent:
        with FakeEngine(agent.listen, engine="1") as other:
            other.publish(transfer_failure("s"))
            with FakeEngine(agent.listen) as engine:
                engine.publish(transfer_failure("r"))
            wait_until(lambda: agent.metric("penstock_engine_connected", engine="0") is None, "it is retired")
            assert agent.metric("penstock_transfer_failures_total", engine="0") is None
            assert agent.metric("penstock_engines_expected") == 1
            assert [item.key.engine for item in _engines(agent)] == ["1"]
            agent.kill()
        # The other one is not to be retired while it is looked at.
        agent._args.clear()
        agent.start()
        assert agent.metric("penstock_engine_connected", engine="0") is None
        assert agent.metric("penstock_transfer_failures_total", engine="1") == 1
        with FakeEngine(agent.listen) as engine:
            engine.publish(transfer_failure("r"))
            assert agent.metric("penstock_transfer_failures_total", engine="0") == 1


def test_a_restart_of_the_agent_remembers_retired_sources() -> None:
    """Engines that were there before are listed until their time is over, each as it went."""
    with running_agent() as agent:
        with FakeEngine(agent.listen) as stopped, FakeEngine(agent.listen, engine="1") as killed:
            for engine in (stopped, killed):
                engine.publish(transfer_failure("r"))
                engine.snapshot(Snapshot())
            stopped.goodbye()
        wait_until(lambda: not any(item.connected for item in _engines(agent)), "both have gone")
        for restarts in (True, False):
            first, second = _engines(agent)
            assert [(item.key.engine, item.connected) for item in (first, second)] == [
                ("0", False),
                ("1", False),
            ]
            assert (first.said_goodbye, second.said_goodbye) == (True, False)
            assert first.retires.seconds > first.last_seen.seconds
            if restarts:
                agent.stop()
                agent.start()
