"""A real relay over two real agents: the worst peers of both, and a table that has all its cells."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess, running_relay

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("decode-0", "decode-1")
MINE, OTHER, GOOD = "10.0.0.1:5600", "10.0.0.2:5600", "10.0.0.3:5600"
# Each agent's own worst: the other knows that peer, too, and nothing is wrong with it there.
WORST = {"decode-0": (MINE, 2), "decode-1": (OTHER, 1)}


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    """Run two agents with an engine each, and their relay."""
    with ExitStack() as parts:
        agents = {name: parts.enter_context(running_agent()) for name in NAMES}
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        for name, agent in agents.items():
            engine = parts.enter_context(FakeEngine(agent.listen))
            peer, failures = WORST[name]
            engine.publish(
                *(
                    transfer_failure(f"r{number}", peer=peer, time_ns=time.time_ns())
                    for number in range(failures)
                )
            )
            known = [{"peer": {"address": each}, "connected": True} for each in (MINE, OTHER, GOOD)]
            # The engine of the first pod is the peer that the second pod has trouble with.
            facts = {"side_channel": OTHER if name == NAMES[0] else ""}
            engine.snapshot(Snapshot(time_unix_nano=time.time_ns(), peers=known, engine=facts))
        running = parts.enter_context(
            running_relay(parts.enter_context(short_directory()), f"--agents={listed}")
        )
        running.wait_for(**dict.fromkeys(NAMES, "up"))
        wait_until(lambda: _is_judged(running), "both agents have their snapshot and judge it")
        yield running


def _is_judged(relay: RelayProcess) -> bool:
    """Until an agent's judge has looked, its failing peer stands behind one that is unreachable by another's judge."""
    found = relay.call("ListPeers", admin.ListPeersRequest())
    return found.total == 6 and [row.cause for row in found.peers[:2]] == ["peer_refuses"] * 2


def _rows(answer: admin.ListPeersResponse) -> list[tuple[str, str]]:
    return [(row.key.server, row.peer.address) for row in answer.peers]


def test_the_worst_of_all_agents_come_first(relay: RelayProcess) -> None:
    """Each agent sends its own; the relay counts the rest."""
    full = relay.call("ListPeers", admin.ListPeersRequest())
    found = relay.call("ListPeers", admin.ListPeersRequest(limit=2))

    assert _rows(found) == [("decode-0", MINE), ("decode-1", OTHER)]
    assert _rows(found) == _rows(full)[:2]
    assert (full.total, full.total_peers, found.total, found.total_peers) == (6, 3, 6, 0)


def test_an_engine_of_another_pod_is_named(relay: RelayProcess) -> None:
    """In both pods' rows, by the name that the relay has for it; commands take that name, too."""

    def named() -> set[tuple[str, str, str]]:
        rows = relay.call("ListPeers", admin.ListPeersRequest()).peers
        return {
            (row.key.server, row.peer.address, row.engine.server) for row in rows if row.HasField("engine")
        }

    wait_until(lambda: named() == {(name, OTHER, NAMES[0]) for name in NAMES}, "the peer is named")
    listed = relay.agentctl("get", "peers", f"{NAMES[0]}/0")
    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:]] == [
        [f"{NAMES[1]}/0", f"{NAMES[0]}/0", OTHER],
        [f"{NAMES[0]}/0", f"{NAMES[0]}/0", OTHER],
    ]


def test_a_table_has_the_cells_of_each_engine(relay: RelayProcess) -> None:
    """The worst peer of one agent is not among the worst of the other, which is asked for its cell."""
    found = relay.call("ListPeers", admin.ListPeersRequest(most_peers=1, most_engines=2))

    assert {("decode-0", MINE), ("decode-1", MINE)} <= {*_rows(found)}
    assert GOOD not in {address for _, address in _rows(found)}


def test_the_command_says_how_many_there_are(relay: RelayProcess) -> None:
    """Of the worst only; named ones are found wherever they stand."""
    said = relay.agentctl("get", "peers", "--worst", "2")
    assert said.exit_code == 0, said.stderr
    assert [line.split()[2] for line in said.stdout.splitlines()[1:3]] == [MINE, OTHER]
    assert "the worst 2 of 6 are shown; omit --worst for all" in said.stderr
    named = json.loads(relay.agentctl("get", "peers", GOOD, "--worst", "1", "-o", "json").stdout)
    assert [peer["peer"]["address"] for peer in named["peers"]] == [GOOD]
