"""Trouble with the disk, a real agent: damaged databases, a directory that is read-only, no way to start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.proto.v1.ingest_pb2 import Batch

from demo.common.processes import free_port
from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import noise, transfer_failure
from tests.support.agent.ingest_client import FakeEngine

POLICY = {
    "apiVersion": "penstock.dev/v1alpha1",
    "kind": "TransferPolicy",
    "metadata": {"name": "p"},
    "spec": {"kvLoadFailure": {"action": "fail"}, "selector": {"matchLabels": {"role": "decode"}}},
}


def agentctl(agent: AgentProcess, *args: str) -> str:
    """Run agentctl against the agent; returns what it writes."""
    result = CliRunner().invoke(cli, ["--address", agent.admin, *args])
    assert result.exit_code == 0, result.output
    return result.output


def with_a_policy(agent: AgentProcess) -> None:
    """Give the agent a policy."""
    path = agent.directory / "p.json"
    path.write_text(json.dumps(POLICY))
    agentctl(agent, "apply", "-f", str(path))


def can_unshare() -> bool:
    """Tell whether this user may mount in a namespace of its own."""
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


needs_mount = pytest.mark.skipif(
    not can_unshare(), reason="this user may not mount in a namespace of its own"
)


class MountedAgent(AgentProcess):
    """An agent in a mount namespace of its own, where *mount* has run before it: a shell's words, ``$S`` is the state."""

    mount = ""

    def command(self) -> list[str]:
        """Return the command line."""
        words = f'S="{self.state_dir}"; {self.mount} && exec "$@"'
        return ["unshare", "-rm", "sh", "-c", words, "sh", *super().command()]

    def inside(self, path: str) -> str:
        """Return a path of the agent's namespace as seen from here."""
        assert self.process is not None
        return f"/proc/{self.process.pid}/root{path}"


def test_damaged_databases_are_set_aside():
    """Both at once: the agent starts, policies are there, counters begin anew, and everything tells."""
    with running_agent() as agent:
        with_a_policy(agent)
        with FakeEngine(agent.listen) as engine:
            engine.publish(transfer_failure("r"))
            created = agent.metric("penstock_state_created_timestamp_seconds")
            agent.stop()
            for name in ("journal.db", "policy.db"):
                path = agent.state_dir / name
                path.write_bytes(os.urandom(path.stat().st_size))
            agent.start()
            assert engine.connect() == 0
        anew = agent.metric("penstock_state_created_timestamp_seconds")
        assert anew is not None
        assert created is not None
        assert anew > created
        for database in ("journal", "policy"):
            assert agent.metric("penstock_agent_databases_set_aside", database=database) == 1
        assert agent.metric("penstock_agent_degraded", reason="databases_set_aside") == 1
        assert agent.metric("penstock_agent_degraded", reason="state_volatile") == 0
        status, text = agent.get("/readyz")
        assert (status, text.split(":")[0]) == (200, "degraded")
        assert agent.get("/healthz") == (200, "ok\n")
        assert "p " in agentctl(agent, "get", "policy")
        assert "recover" in agentctl(agent, "get", "audit")


def test_damage_that_shows_while_it_runs():
    """The agent ends with one sentence, as a restart repairs it, and its next start keeps what can be read."""
    with running_agent(["--on-fatal=idle"]) as agent:
        with FakeEngine(agent.listen) as engine:
            for n in range(40):
                engine.publish(*(transfer_failure(f"r{n}-{m}", error_text=noise(3000)) for m in range(4)))
        agent.stop()
        path = agent.state_dir / "journal.db"
        database = sqlite3.connect(path)
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'batches_received'"
        ).fetchone()
        database.close()
        with path.open("r+b") as file:
            file.seek((root - 1) * 4096)
            file.write(os.urandom(4096))
        agent.start()
        process = agent.process
        assert process is not None
        with FakeEngine(agent.listen) as engine:
            engine.send(Batch(epoch=engine.epoch, seq=1, events=[transfer_failure("r")]))
            assert process.wait(60) == 2
        assert "penstock-agent: the journal is damaged (" in agent.log()
        agent.start()
        assert agent.metric("penstock_agent_databases_set_aside", database="journal") == 1


class ReadOnly(MountedAgent):
    """Its state directory is on a read-only mount."""

    mount = 'mkdir -p "$S" && mount --bind "$S" "$S" && mount -o remount,ro,bind "$S"'

    def _ready(self) -> bool:
        for record in self.records():
            if record["event"] == "agent ready":
                self.http = str(record["http"])
        return bool(self.http) and self.get("/readyz")[0] == 200


@needs_mount
def test_a_read_only_state_directory():
    """Degraded, not dead: metrics and policies are there, acknowledgements are given, and it says what they are worth."""
    with running_agent() as first:
        with_a_policy(first)
        with FakeEngine(first.listen) as engine:
            engine.publish(transfer_failure("r"))
        first.kill()
        agent = ReadOnly(first.directory)
        try:
            agent.start()
            assert "cannot be written" in agent.get("/readyz")[1]
            assert agent.metric("penstock_agent_degraded", reason="state_volatile") == 1
            with FakeEngine(agent.listen) as engine:
                engine.publish(transfer_failure("a"), transfer_failure("b"))
            assert agent.metric("penstock_transfer_failures_total") == 2
            assert "p " in agentctl(agent, "get", "policy")
        finally:
            assert agent.stop() == 0
        first.start()
        assert first.metric("penstock_transfer_failures_total") == 1


@pytest.mark.parametrize("mistake", ["--http=nowhere", "--state-dir=/proc/nowhere"])
def test_idle_instead_of_a_crash_loop(mistake):
    """It stays, says why, and ends at SIGTERM."""
    with short_directory() as directory:
        agent = AgentProcess(directory, ["--on-fatal=idle", mistake])
        with (directory / "agent.log").open("ab") as log:
            process = subprocess.Popen(agent.command(), env=agent._env, stderr=log, stdout=log)
        try:
            wait_until(lambda: "agent idle" in agent.log(), "the agent is idle", 60)
            assert process.poll() is None
            assert mistake.partition("=")[2] in agent.log()
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        assert code in (0, 2)


def test_idle_health():
    """Health answers, and says what is wrong; a scrape fails, which is what alerts on it."""
    with running_agent() as owner:
        with short_directory() as directory:
            http = f"127.0.0.1:{free_port()}"
            agent = IdleAgent(
                directory, ["--on-fatal=idle", f"--state-dir={owner.state_dir}", f"--http={http}"]
            )
            agent.http = http
            try:
                agent.start()
                status, text = agent.get("/healthz")
                assert (status, "another penstock-agent owns" in text) == (503, True)
                assert agent.get("/metrics")[0] == 503
            finally:
                agent.stop()
        assert owner.get("/readyz")[0] == 200


class IdleAgent(AgentProcess):
    """One that will not become ready."""

    def _ready(self) -> bool:
        return "agent idle" in self.log() and self.get("/healthz")[0] != 0


def test_a_backup_is_a_state_directory():
    """Taken from a running agent and from a stopped one; an agent started on it has counters and policies."""
    with running_agent() as agent:
        with_a_policy(agent)
        with FakeEngine(agent.listen) as engine:
            engine.publish(transfer_failure("a"))
            first = agent.directory / "first"
            result = agent.run("backup", str(first))
            assert (result.returncode, result.stderr) == (0, "")
            assert result.stdout.startswith(f"{first}: ")
            assert agent.run("backup", str(first)).stderr.endswith(
                f"{first} exists already; give a new path\n"
            )
            engine.publish(transfer_failure("b"))
        agent.kill()
        second = agent.directory / "second"
        assert agent.run("backup", str(second)).returncode == 0
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (second, *second.iterdir())}
        assert modes == {"second": "0o700", "journal.db": "0o600", "policy.db": "0o600"}
        for place, count in ((first, 1), (second, 2)):
            copy = AgentProcess(agent.directory, [f"--state-dir={place}"])
            copy.state_dir = place
            try:
                copy.start()
                assert copy.metric("penstock_transfer_failures_total") == count
                assert "p " in agentctl(copy, "get", "policy")
            finally:
                copy.stop()


def test_a_backup_of_nothing():
    """One sentence."""
    with short_directory() as directory:
        result = AgentProcess(directory).run("backup", str(directory / "x"))
    assert result.returncode == 2
    assert "is no state directory; give --admin-listen or --state-dir" in result.stderr
