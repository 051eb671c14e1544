"""Start, drain, restart and health of a real agent process."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from penstock.agent.journal import Reader
from penstock.proto.v1.admin_pb2 import GetStatusRequest
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.policy_pb2 import Report, Subscribe
from penstock.proto.v1.policy_pb2_grpc import PolicyFeedStub
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import HASTY_AGENT, AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import deferral_start, event, transfer_failure
from tests.support.agent.ingest_client import FakeEngine


def test_ready_means_that_all_doors_are_open(agent):
    """The log line and the file tell the real addresses; health answers on each of them."""
    (ready,) = [record for record in agent.records() if record["event"] == "agent ready"]
    addresses = json.loads((agent.state_dir / "addresses.json").read_text())
    assert addresses == {name: ready[name] for name in ("pid", "listen", "admin", "http")}
    assert not addresses["http"].endswith(":0")
    modes = {}
    for path in agent.state_dir.iterdir():
        # It renames some of its files while the test looks.
        with suppress(FileNotFoundError):
            modes[path.name] = oct(path.stat().st_mode & 0o777)
    assert set(modes.values()) == {"0o600"}, modes
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.get("/readyz") == (200, "ok\n")
    for address in (agent.listen, agent.admin):
        with grpc.insecure_channel(address) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_sockets_have_their_own_permissions(agent):
    """Engines may share the ingest's by group; the admin's is the agent's user alone."""
    modes = {
        name: stat.S_IMODE(Path(address.removeprefix("unix://")).stat().st_mode)
        for name, address in (("listen", agent.listen), ("admin", agent.admin))
    }
    assert modes == {"listen": 0o660, "admin": 0o600}


def test_both_of_an_engines_services_are_on_its_endpoint(agent):
    """Ingest and policy feed on one socket, the admin service on the other only."""
    with FakeEngine(agent.listen) as engine:
        engine.publish(transfer_failure("r"))
    with grpc.insecure_channel(agent.listen) as channel:
        subscribe = Report(subscribe=Subscribe(schema_version=1, epoch=1, key={"engine": "0"}))
        push = next(PolicyFeedStub(channel).Watch(iter([subscribe]), timeout=60))
        assert (push.nonce, list(push.schedule)) == (1, [])
        with pytest.raises(grpc.RpcError) as caught:
            AdminStub(channel).GetStatus(GetStatusRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with grpc.insecure_channel(agent.admin) as channel:
        status = AdminStub(channel).GetStatus(GetStatusRequest(), timeout=60)
    assert status.state_dir == str(agent.state_dir)
    assert status.log_last >= 1
    assert status.metrics_address == agent.http
    assert status.listen_address == agent.listen
    assert status.disk_free_bytes > 0
    assert status.start_time.ToNanoseconds() > 0


def test_a_message_that_breaks_the_contract_is_counted():
    """The status tells how many, the last one and when."""
    with running_agent(["--engines-expected=3"]) as agent:
        with FakeEngine(agent.listen) as engine:
            engine.send(Batch(epoch=engine.epoch + 1, seq=1))
            assert engine.failure() is grpc.StatusCode.INVALID_ARGUMENT
        with grpc.insecure_channel(agent.admin) as channel:
            status = AdminStub(channel).GetStatus(GetStatusRequest(), timeout=60)
    assert (status.messages_refused, status.engines_expected) == (1, 3)
    assert "open a stream for each" in status.last_refusal
    assert status.last_refused.ToNanoseconds() >= status.start_time.ToNanoseconds()


def test_ingest_over_tcp():
    """host:port, with port 0 resolved."""
    with running_agent(["--listen=127.0.0.1:0"]) as agent:
        assert not agent.listen.endswith(":0")
        with FakeEngine(agent.listen) as engine:
            assert engine.publish(transfer_failure("r")) == 1


def _has_ipv6() -> bool:
    try:
        return f"{1:032x} " in Path("/proc/net/if_inet6").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_all_over_ipv6():
    """As in a pod that has no other address."""
    with running_agent(["--listen=[::]:0", "--http=[::]:0"]) as agent:
        with FakeEngine(agent.listen.replace("[::]", "[::1]")) as engine:
            assert engine.publish(transfer_failure("r")) == 1
        agent.http = agent.http.replace("[::]", "[::1]")
        assert agent.metric("penstock_transfer_failures_total") == 1


def test_an_engine_that_vanishes_with_the_agent_is_lost_after_the_restart():
    """A source that vanished during a kill is still open in the journal."""
    with running_agent(["--source-grace=50ms"], module=HASTY_AGENT) as agent:
        with FakeEngine(agent.listen) as engine:
            engine.publish(deferral_start("r"))
            agent.kill()
        agent.start()
        wait_until(
            lambda: agent.metric("penstock_deferrals_total", ending="engine_lost") == 1,
            "the deferral has ended",
        )


@pytest.mark.parametrize("killed", ["before-the-connection-ends", "in-the-grace-time", "after-the-record"])
def test_an_announced_stop_is_one_after_the_restart_of_the_agent(killed):
    """The announcement is in the log: the verdict is the same whenever the agent is killed."""
    grace = "50ms" if killed == "after-the-record" else "30s"
    with running_agent([f"--source-grace={grace}"], module=HASTY_AGENT) as agent:
        # The announcement is the newest word about the server, and no longer that of its front end.
        front = FakeEngine(agent.listen, process="api", engine="")
        core = FakeEngine(agent.listen)
        front.connect()
        core.connect()
        core.publish(deferral_start("r"))
        front.publish(event("server_stopping", time_ns=time.time_ns()))
        front.publish(transfer_failure("another"))
        if killed != "before-the-connection-ends":
            core.disconnect()
            wait_until(lambda: agent.metric("penstock_engine_stopped", engine="0") == 1, "it has stopped")
        if killed == "after-the-record":
            wait_until(lambda: _gone(agent, core.epoch) == "source_stopped", "its end is in the log")
        agent.kill()
        core.disconnect()
        front.disconnect()
        agent._args = ["--source-grace=50ms"]
        agent.start()
        assert agent.metric("penstock_engine_stopped", engine="0") == 1
        wait_until(lambda: _gone(agent, core.epoch) == "source_stopped", "its end is in the log")
        assert agent.metric("penstock_engine_stopped", engine="0") == 1
        assert not agent.metric("penstock_deferrals_total", ending="engine_lost")


def _gone(agent: AgentProcess, epoch: int) -> str:
    """Return what the log says of the end of a source; empty while it says nothing."""
    with Reader(agent.state_dir / "journal.db") as reader:
        for logged, index in reader.scan(kinds=("source_lost", "source_stopped")):
            found = reader.parse(logged).events[index]
            kind = str(found.WhichOneof("body"))
            if getattr(found, kind).epoch == epoch:
                return kind
    return ""


def test_the_state_of_another_pod_is_put_aside():
    """POD_UID differs: counting starts anew."""
    with running_agent(env={"POD_UID": "one"}) as agent:
        with FakeEngine(agent.listen) as engine:
            engine.publish(transfer_failure("r"))
        assert agent.metric("penstock_transfer_failures_total") == 1
        agent.stop()
        agent._env["POD_UID"] = "two"
        agent.start()
        assert agent.metric("penstock_transfer_failures_total") is None
        assert len(list(agent.state_dir.glob("journal-*.db"))) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_drains(number):
    """Streams end with UNAVAILABLE, the metrics' state is saved, nothing is left lying about, exit code 0."""
    with running_agent() as agent:
        with FakeEngine(agent.listen) as engine:
            for n in range(20):
                engine.publish(transfer_failure(f"r{n}"))
            assert agent.stop(number) == 0
            assert engine.failure() is grpc.StatusCode.UNAVAILABLE
        assert [record["event"] for record in agent.records()][-1] == "agent stopped"
        assert [path.name for path in agent.directory.glob("*.sock")] == []
        assert not (agent.state_dir / "addresses.json").exists()
        database = sqlite3.connect(agent.state_dir / "journal.db")
        assert database.execute("SELECT batch FROM folds").fetchall() == [(20,)]
        assert database.execute("SELECT max(id) FROM batches").fetchall() == [(20,)]
        database.close()


def test_a_restart_brings_counters_back_and_no_gauges():
    """After a kill the log is replayed, over the sockets that it left behind; a drain saves the metrics' state."""
    with running_agent() as agent:
        with FakeEngine(agent.listen) as engine:
            engine.publish(transfer_failure("r"), transfers=["a", "b"])
            engine.snapshot(Snapshot(leases={"count": 3}))
            wait_until(lambda: agent.metric("penstock_send_leases") == 3, "the gauge")
            agent.kill()
        assert Path(agent.listen.removeprefix("unix://")).exists()
        agent.start()
        for replayed in (1, 0):
            ready = [record for record in agent.records() if record["event"] == "agent ready"][-1]
            assert ready["replayed"] == replayed
            assert agent.metric("penstock_transfers_total") == 2
            assert agent.metric("penstock_send_leases") is None
            assert agent.metric("penstock_engine_connected", engine="0") == 0
            if replayed:
                agent.stop()
                agent.start()


def test_an_agent_says_what_it_measures_about_itself(agent):
    """Commits, acknowledgements, engines: in ``/metrics``, in both formats."""
    with FakeEngine(agent.listen, engine="self") as engine:
        seq = engine.publish(transfer_failure("r"))
        assert agent.metric("penstock_engines_expected") == 2
        assert agent.metric("penstock_engines_connected") >= 1
        assert agent.metric("penstock_state_created_timestamp_seconds") > 1e9
        assert agent.metric("penstock_agent_commit_duration_seconds_count") >= seq
        text = agent.get("/metrics", accept="application/openmetrics-text; version=1.0.0")[1]
        assert text.endswith("# EOF\n")


def test_a_memory_limit_below_what_it_needs_is_no_readiness():
    """No engine is taken in, and the agent says so, with a limit that is enough; it is ready once there is room."""
    args = ("--memory-limit", "128MiB")
    with short_directory() as directory:
        agent = AgentProcess(directory, args, module="tests.support.agent.heavy_agent")
        agent.launch()
        try:
            wait_until(lambda: "agent ready" in agent.log(), "it serves")
            (ready,) = [record for record in agent.records() if record["event"] == "agent ready"]
            agent.http = str(ready["http"])
            _no_engine_is_taken_in(agent)
            assert agent.process is not None
            agent.process.send_signal(signal.SIGUSR1)
            agent.wait_ready()
            with FakeEngine(agent.listen) as engine:
                engine.publish(transfer_failure("r"))
        finally:
            agent.stop()


def _no_engine_is_taken_in(agent: AgentProcess) -> None:
    status, text = agent.get("/readyz")
    assert (status, agent.get("/healthz")[0]) == (503, 200)
    found = re.search(
        r"the agent holds (\d+) MiB and --memory-limit is 128 MiB: it takes nothing from engines; give it (\d+)MiB or more",
        text,
    )
    assert found is not None
    assert 256 < int(found[1]) <= int(found[2]) - 64
    assert agent.metric("penstock_agent_degraded", reason="memory_short") == 1
    with pytest.raises(grpc.RpcError) as caught, FakeEngine(agent.listen):
        raise AssertionError
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (said,) = [record for record in agent.records() if record["event"] == "no engine is taken in"]
    assert "--memory-limit is 128 MiB" in str(said["reason"])
