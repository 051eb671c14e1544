"""All files of the state are removed while the agent runs: no acknowledged batch is lost, and the removal is reported."""

from __future__ import annotations

import json

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.removed_files import the_directory

RESTORED = "penstock_agent_databases_restored_total"
FAILURES = "penstock_transfer_failures_total"
DATABASES = ("journal", "policy")


def agentctl(agent: AgentProcess, *args: str) -> str:
    """Run agentctl against the agent; returns what it writes."""
    return CliRunner().invoke(cli, ["--address", agent.admin, *args]).output


def apply(agent: AgentProcess, name: str) -> None:
    """Give the agent a policy."""
    path = agent.directory / f"{name}.json"
    spec = {"kvLoadFailure": {"action": "fail"}, "selector": {"matchLabels": {"role": "decode"}}}
    manifest = {"apiVersion": "penstock.dev/v1alpha1", "kind": "TransferPolicy", "metadata": {"name": name}}
    path.write_text(json.dumps({**manifest, "spec": spec}))
    assert name in agentctl(agent, "apply", "-f", str(path))


def wait_until_restored(agent: AgentProcess, database: str, times: int) -> None:
    """Poll until a database has been restored so many times."""
    wait_until(lambda: agent.metric(RESTORED, database=database) == times, "it is put back")


def test_what_is_removed_is_put_back():
    """What was acknowledged before and after survives kill -9; health, doctor, metrics and the log say what happened."""
    with running_agent() as agent:
        apply(agent, "before")
        with FakeEngine(agent.listen) as engine:
            engine.publish(transfer_failure("a"))
            the_directory(agent.state_dir / "journal.db")
            for n in range(20):
                engine.publish(transfer_failure(f"b{n}"))
            apply(agent, "after")
            for database in DATABASES:
                assert agent.metric(RESTORED, database=database) == 1
            assert agent.metric("penstock_agent_degraded", reason="databases_restored") == 1
            status, text = agent.get("/readyz")
            assert (status, "journal.db was removed while the agent ran" in text) == (200, True)
            assert "policy.db was removed while the agent ran" in agentctl(agent, "doctor")
            events = {record["event"] for record in agent.records()}
            assert "a database was removed or replaced; restored from the open file" in events
            assert agent.metric(FAILURES) == 21
            assert "b19" in agentctl(agent, "get", "events")
            # An agent without clients does the same.
            the_directory(agent.state_dir / "journal.db")
            for database in DATABASES:
                wait_until_restored(agent, database, 2)
            agent.kill()
            agent.start()
            assert engine.connect() == 21
        assert agent.metric(FAILURES) == 21
        assert {"before", "after"} <= set(agentctl(agent, "get", "policy").split())
        assert agent.metric("penstock_agent_degraded") == 0
