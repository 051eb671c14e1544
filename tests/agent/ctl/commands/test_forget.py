"""``agentctl forget``, and lists with disconnected engines and retired peers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result
    from penstock.agent.model import Source

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]


def _leave(harness: AdminHarness, source: Source, *, said_goodbye: bool = False) -> None:
    async def leave() -> None:
        harness.registry.disconnect(source.epoch, said_goodbye=said_goodbye)

    harness.run(leave())


def test_an_engine_that_has_gone(harness: AdminHarness, agentctl: Agentctl) -> None:
    """A disconnected engine can be forgotten; lists drop it, and the audit log has the author."""
    source = harness.source("0")
    harness.source("1")
    harness.append(source, transfer_failure("r"))
    refused = agentctl("forget", "engine", "0")
    assert refused.exit_code == 1
    assert "engine 0 is connected; stop it first" in refused.stderr
    _leave(harness, source)
    assert [line.split()[0] for line in agentctl("get", "engines").stdout.splitlines()[1:]] == ["0", "1"]
    assert "0   " in agentctl("get", "engines", "--state", "disconnected").stdout
    assert "\n0   " not in agentctl("get", "engines", "--state", "connected").stdout
    done = agentctl("forget", "engine", "0", "--reason", "scaled down")
    assert (done.exit_code, done.stdout) == (0, "engine 0 forgotten\n")
    assert [line.split()[0] for line in agentctl("get", "engines").stdout.splitlines()[1:]] == ["1"]
    assert "no known peers" in agentctl("get", "peers").stderr
    (entry,) = json.loads(agentctl("get", "audit", "-o", "json").stdout)["entries"]
    assert (entry["action"], entry["name"], entry["reason"]) == ("forget-engine", "engine 0", "scaled down")
    assert "engine forgotten, by" in agentctl("get", "events").stdout
    assert agentctl("forget", "engine", "0").exit_code == 1


def test_a_peer_that_has_gone(harness: AdminHarness, agentctl: Agentctl) -> None:
    """After --retire-after only ``--state all`` lists a peer; after forget, none does."""
    now = time.time_ns()
    source = harness.source("0")
    harness.append(source, transfer_failure("r"), transfer_failure("s", peer="new:1", time_ns=now))
    listed = agentctl("get", "peers")
    assert (PEER in listed.stdout, "new:1" in listed.stdout) == (False, True)
    assert listed.stderr == "1 retired peer is not shown; --state all lists them\n"
    retired = agentctl("get", "peers", "--state", "retired")
    assert (PEER in retired.stdout, "new:1" in retired.stdout, retired.stderr) == (True, False, "")
    assert len(json.loads(agentctl("get", "peers", "--state", "all", "-o", "json").stdout)["peers"]) == 2
    # What its engine holds a connection to is active, however quiet it is.
    harness.snapshot(source, Snapshot(peers=[{"peer": {"address": PEER}, "connected": True}]))
    assert PEER in agentctl("get", "peers").stdout
    refused = agentctl("forget", "peer", PEER)
    assert refused.exit_code == 1
    assert (
        f"engine 0 reports {PEER} as connected, in flight or quarantined, and would bring it back"
        in refused.stderr
    )
    assert f"agentctl quarantine lift {PEER}" in refused.stderr
    # What it reports without a connection comes back, and the command says so.
    harness.snapshot(source, Snapshot(peers=[{"peer": {"address": PEER}}]))
    done = agentctl("forget", "peer", PEER, "-l", "role=decode")
    assert (done.exit_code, done.stdout) == (0, f"peer {PEER} of engine 0 forgotten\n")
    assert done.stderr.startswith("engine 0 still reports it: lists show it again, with counts from 0")
    assert PEER in agentctl("get", "peers", "--state", "all").stdout
    harness.append(source, transfer_failure("r"))
    harness.snapshot(source, Snapshot())
    done = agentctl("forget", "peer", PEER, "-l", "role=decode")
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"peer {PEER} of engine 0 forgotten\n", "")
    assert PEER not in agentctl("get", "peers", "--state", "all").stdout
    assert json.loads(agentctl("forget", "peer", "new:1", "-o", "json").stdout) == {
        "engines": [{"server": "", "engine": "0"}]
    }


def test_a_clock_that_is_behind_retires_nothing(harness: AdminHarness, agentctl: Agentctl) -> None:
    """An engine's timestamps are compared with its own clock."""
    hour = 3600 * 10**9
    source = harness.source("0")
    now = time.time_ns()
    harness.append(source, transfer_failure("r", time_ns=now - hour))
    assert PEER not in agentctl("get", "peers").stdout
    harness.snapshot(source, Snapshot(time_unix_nano=now - hour))
    assert PEER in agentctl("get", "peers").stdout


def test_the_doctor_about_engines_that_have_gone(harness: AdminHarness, agentctl: Agentctl) -> None:
    """A clean disconnect is a note, a lost connection is a cause of the diagnosis; both have the time of retirement."""
    source = harness.source("0")
    _leave(harness, source, said_goodbye=True)
    noted = agentctl("doctor")
    assert "note   engine 0: was stopped, last seen" in noted.stdout
    assert "; forgotten in 14m" in noted.stdout or "; forgotten in 15m" in noted.stdout
    harness.source("0")
    _leave(harness, source)
    lost = agentctl("doctor")
    assert lost.exit_code == 1
    assert "wrong  engine_away: engine 0 is not connected, last seen" in lost.stdout
    assert "note   engine 0: not connected, last seen" in lost.stdout
    assert "agentctl forget engine 0" in lost.stdout


def test_a_policy_says_what_became_of_its_engines(harness: AdminHarness, agentctl: Agentctl) -> None:
    """One that was stopped is not lost."""
    stopped, lost = harness.source("0"), harness.source("1")
    assert agentctl("set-policy", "p", "--all", "--kv-load-failure", "recompute").exit_code == 0
    _leave(harness, stopped, said_goodbye=True)
    _leave(harness, lost)
    said = agentctl("describe", "policy", "p").stdout
    assert "0: stopped; applied when it starts" in said
    assert "1: disconnected; applied when it reconnects" in said
