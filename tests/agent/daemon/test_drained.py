"""``GET /drained`` of a real agent, and what a container's preStop makes of it."""

from __future__ import annotations

import time

from penstock.instrumentation import drain
from penstock.proto.v1.common_pb2 import ROLE_PREFILL
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.ingest_client import FakeEngine


def report(leases: int) -> Snapshot:
    """Return what an engine with so many unread leases says."""
    now = time.time_ns()
    held = {"count": leases, "blocks": 9, "oldest_start_time_unix_nano": now - 3_000_000_000}
    return Snapshot(time_unix_nano=now, queue={}, leases=held if leases else None)


def test_an_agent_without_engines(agent):
    """Nothing is known: neither drained nor not."""
    assert agent.get("/drained") == (404, "no engine is known\n")
    assert agent.get("/drained?engine=x/0") == (404, "there is no engine 'x/0'\n")


def test_leases_of_a_prefill(agent, capsys):
    """503 with how many and since when, by engine, server or all; 200 once they are read."""
    url = f"http://{agent.http}"
    with (
        FakeEngine(agent.listen, server="a", role=ROLE_PREFILL) as first,
        FakeEngine(agent.listen, server="b", role=ROLE_PREFILL) as second,
    ):
        first.snapshot(report(2))
        second.snapshot(report(0))
        wait_until(lambda: agent.get("/drained?engine=b")[0] == 200, "engine b/0 is not drained")
        wait_until(lambda: "unread leases" in agent.get("/drained?engine=a")[1], "engine a/0 has no leases")
        status, text = agent.get("/drained")
        assert status == 503
        needed, drained = text.splitlines()
        assert needed.startswith(
            "engine a/0 is not drained: 2 unread leases that no engine known here waits for, the oldest since"
        )
        assert drained == "engine b/0 is drained"
        assert agent.get("/drained?engine=b/0") == (200, "engine b/0 is drained\n")
        assert agent.get("/drained?engine=a")[0] == 503
        assert drain.main(["--url", url, "--engine", "a", "--timeout", "1s"]) == 1
        assert "2 unread leases" in capsys.readouterr().out
        first.snapshot(report(0))
        wait_until(lambda: agent.get("/drained")[0] == 200, "engine a/0 is not drained")
        first.snapshot(report(0))
        assert drain.main(["--url", url, "--engine", "a", "--settle", "0.1"]) == 0
    wait_until(lambda: "not connected" in agent.get("/drained?engine=a")[1], "engine a/0 is still connected")
    assert agent.get("/drained?engine=a") == (
        503,
        "engine a/0: what it holds is not known; its scheduler is not connected\n",
    )
