"""A real relay over two real agents: the map names the engines of both, and says what moves between them."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.batches import add_transfers, transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess, running_relay

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFILL, _STRANGER = "10.0.0.1:5600", "10.0.0.9:5600"
_SIZE = 256 << 20


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    """Run an agent with a prefill and one with a decode that reads from it and cannot reach another, and their relay."""
    with ExitStack() as parts:
        agents = {name: parts.enter_context(running_agent()) for name in ("prefill-0", "decode-0")}
        prefill = parts.enter_context(
            FakeEngine(agents["prefill-0"].listen, role=ROLE_PREFILL, labels={"pool": "a"})
        )
        decode = parts.enter_context(
            FakeEngine(agents["decode-0"].listen, role=ROLE_DECODE, labels={"pool": "a"})
        )
        now = time.time_ns()
        prefill.snapshot(Snapshot(time_unix_nano=now, engine={"side_channel": _PREFILL}))
        known = [{"peer": {"address": each}, "connected": True} for each in (_PREFILL, _STRANGER)]
        decode.snapshot(Snapshot(time_unix_nano=now, peers=known, engine={}))
        moved = add_transfers(Batch(), [f"r{number}" for number in range(9)], peer=_PREFILL, size=_SIZE)
        moved.transfers.end_time_unix_nano[:] = [now] * 9
        decode.publish_batch(moved)
        decode.publish(*(transfer_failure(f"f{n}", peer=_STRANGER, time_ns=now) for n in range(3)))
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        running = parts.enter_context(
            running_relay(parts.enter_context(short_directory()), f"--agents={listed}")
        )
        running.wait_for(**dict.fromkeys(agents, "up"))
        wait_until(lambda: _is_whole(running), "the relay names the prefill, and the judge has looked")
        yield running


def _is_whole(relay: RelayProcess) -> bool:
    rows = {row.peer.address: row for row in relay.call("ListPeers", admin.ListPeersRequest()).peers}
    return rows.keys() == {_PREFILL, _STRANGER} and (
        rows[_PREFILL].HasField("engine") and rows[_STRANGER].cause == "peer_refuses"
    )


def _map(relay: RelayProcess, *words: str) -> dict[str, Any]:
    said = relay.agentctl("get", "map", *words, "-o", "json")
    assert said.exit_code == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_state_goes_from_the_prefill_to_the_decode(relay: RelayProcess) -> None:
    """With the bytes of 15 minutes; the engines of both agents have their roles and pools."""
    found = _map(relay)
    assert [(node["name"], node["role"], node["pool"], node["connected"]) for node in found["nodes"]] == [
        ("prefill-0/0", "prefill", "a", True),
        ("decode-0/0", "decode", "a", True),
        (_STRANGER, "other", "", False),
    ]
    stranger, own = found["edges"]
    assert (own["from"], own["to"], own["channel"]) == ("prefill-0/0", "decode-0/0", "kv")
    assert own["bytesPerSecond"] == pytest.approx(9 * _SIZE / found["windowSeconds"])
    assert (own["transfers"], own["failed"], own["linksInTrouble"]) == (9, 0, 0)
    assert own["transferBytesPerSecond"] == pytest.approx(_SIZE / 0.01, rel=0.5)
    assert (stranger["from"], stranger["condition"], stranger["at"]) == (_STRANGER, "unreachable", _STRANGER)
    assert (stranger["transfers"], stranger["failed"], stranger["bytesPerSecond"]) == (3, 3, 0)
    assert (found["groups"], found["leftOut"]) == ([], 0)


def test_the_table_has_the_worst_first(relay: RelayProcess) -> None:
    """One line an edge; a sum is none here."""
    said = relay.agentctl("get", "map")
    head, stranger, own = said.stdout.splitlines()
    assert head.split() == ["FROM", "TO", "CHANNEL", "STATE", "SINCE", "GB/S", "FAILED", "SPEED"]
    assert stranger.split()[:4] == [_STRANGER, "decode-0/0", "kv", "unreachable"]
    assert stranger.split()[5:7] == ["0.000", "100%"]
    assert own.split()[:7] == ["prefill-0/0", "decode-0/0", "kv", "ok", "-", "0.003", "0%"]


def test_an_engine_or_an_address_is_the_map_of_its_edges(relay: RelayProcess) -> None:
    """By either name; of what is not there the command says so."""
    for name in ("prefill-0/0", _PREFILL):
        assert [edge["from"] for edge in _map(relay, name)["edges"]] == ["prefill-0/0"]
    assert len(_map(relay, "decode-0/0")["edges"]) == 2
    assert len(_map(relay, "-l", "pool=a")["edges"]) == 2
    missing = relay.agentctl("get", "map", "10.9.9.9:1")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "'10.9.9.9:1' is not on the map" in missing.stderr
    assert "no engine matches" in relay.agentctl("get", "map", "-l", "pool=zz").stderr


def test_graphs_have_the_same_nodes_and_edges(relay: RelayProcess) -> None:
    """For Graphviz and for Mermaid, with the state in words."""
    dot = relay.agentctl("get", "map", "-o", "dot").stdout
    mermaid = relay.agentctl("get", "map", "-o", "mermaid").stdout
    assert dot.startswith("digraph penstock {\n")
    assert mermaid.startswith("flowchart LR\n")
    for printed, arrow in ((dot, " -> "), (mermaid, "-->")):
        assert printed.count(arrow) == 2
        assert printed.count("unreachable") == 1
        assert printed.count("prefill-0/0") == 1


def test_nodes_go_by_the_names_that_commands_take(relay: RelayProcess) -> None:
    """Engines and peers."""
    said = relay.agentctl("get", "map", "-o", "name").stdout.splitlines()
    assert said == ["engine/prefill-0/0", "engine/decode-0/0", f"peer/{_STRANGER}"]
