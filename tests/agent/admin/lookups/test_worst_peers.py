"""The worst peers are the first of the full list, and their table says what the table of the full list says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.admin.lookups.known_peers import PEER_METRICS, PeerSources, Present, judged_peers
from penstock.agent.admin.lookups.peer_conditions import peer_condition
from penstock.agent.admin.lookups.peers import listed_peers
from penstock.agent.badness import list_place
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.model import EngineKey
from penstock.agent.page.screen import tables as screen_tables
from penstock.agent.page.screen.model import ScreenAnswers
from penstock.agent.relay.merged_peers import add_cells, cells_request, merge_peers, table_rows
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import TIME, transfer_failure
from tests.support.agent.metric_logs import SECOND, source, transfers
from tests.support.examples import examples

if TYPE_CHECKING:
    from penstock.agent.page.screen import Peers

    from tests.support.agent.admin_server import AdminHarness

_AGENTS = ("a", "b")
_AGO = 3600 * SECOND
_KINDS = (
    "connected",
    "counted",
    "gone",
    "failing",
    "hanging",
    "waited for",
    "slow",
    "quarantined",
    "invalid",
    "judged",
)
_STATUSES: dict[str, dict[str, Any]] = {
    "connected": {"connected": True},
    "quarantined": {"quarantine": QUARANTINE_STATE_OPEN},
    "invalid": {"upstream_invalid": True},
    "judged": {"connected": True},
}
# By how much there is of it.
_CAUSES = ("", "weights_differ", "peer_refuses", "incompatible_pair", "peer_slow")
# What each engine of each agent has with each peer, and how much of it.
_Cells = dict[tuple[str, str, str], tuple[str, int]]
cells = st.dictionaries(
    st.tuples(st.sampled_from(_AGENTS), st.sampled_from("0123"), st.sampled_from([*"pqrst", "unknown"])),
    st.tuples(st.sampled_from(_KINDS), st.integers(1, 4)),
    max_size=24,
)

requests = st.builds(
    admin.ListPeersRequest,
    state=st.sampled_from(["", "active", "retired", "all"]),
    peers=st.lists(st.sampled_from("pqrx"), max_size=3),
)


def _sources(of: _Cells, agent: str = "a") -> PeerSources:
    """Return what an agent knows of its engines."""
    aggregator, snapshots = Aggregator(), dict[EngineKey, list[Snapshot]]()
    diagnosis = admin.Diagnosis()
    for (owner, engine, peer), (kind, number) in of.items():
        if owner != agent:
            continue
        key = EngineKey("", engine)
        snapshot = snapshots.setdefault(key, [Snapshot()])[0]
        batch = Batch()
        begun = TIME - 10 * number * SECOND
        waiting: dict[str, Any] = {
            "peer": {"address": peer},
            "count": 1,
            "oldest_start_time_unix_nano": begun,
        }
        match kind:
            case "counted" | "gone" | "slow":
                duration, times = (2 * SECOND, number + 2) if kind == "slow" else (SECOND // 100, 1)
                ended = TIME - _AGO if kind == "gone" else TIME
                batch = transfers([(duration, 1, peer, TRANSFER_RESULT_OK)] * times, time_ns=ended)
            case "failing":
                batch.events.extend([transfer_failure("r", peer=peer)] * number)
            case "hanging":
                snapshot.in_flight.add(**waiting)
            case "waited for":
                snapshot.deferred.add(**waiting)
            case _:
                snapshot.peers.add(peer={"address": peer}, **_STATUSES[kind])
        if kind == "judged":
            diagnosis.causes.add(kind=_CAUSES[number], peer=peer, engines=[{"engine": engine}], harm=number)
        aggregator.apply(source(engine), BatchColumns(batch, batch.SerializeToString()))
    return PeerSources(aggregator, snapshots, {}, {}, TIME, diagnosis=diagnosis)


def _listed(of: _Cells, request: admin.ListPeersRequest, agent: str = "a") -> admin.ListPeersResponse:
    return listed_peers(_sources(of, agent), request, TIME - _AGO // 2)


def _asked(request: admin.ListPeersRequest, **fields: Any) -> admin.ListPeersRequest:
    asked = admin.ListPeersRequest(**fields)
    asked.MergeFrom(request)
    return asked


@settings(max_examples=examples(200))
@given(cells, requests)
def test_the_full_list_is_in_the_documented_order(of: _Cells, request: admin.ListPeersRequest) -> None:
    """By condition, by how bad it is, then by engine and address; each row is in the state that is asked for."""
    sources = _sources(of)
    full = listed_peers(sources, request, TIME - _AGO // 2)
    judged = judged_peers(sources.diagnosis, {}, {})

    def order(row: admin.PeerSummary) -> tuple[tuple[int, int], float, str, str]:
        present = Present(
            row.in_flight,
            row.oldest_in_flight.ToNanoseconds(),
            row.deferred,
            row.oldest_deferred.ToNanoseconds(),
            row.status.quarantine,
        )
        key, address = EngineKey("", row.key.engine), row.peer.address
        windows = sources.aggregator.peer_windows(key, address, TIME)
        tried = sources.aggregator.newest_of_peers(key, PEER_METRICS).get(address, 0)
        found = peer_condition(present, windows, TIME, tried)
        if not present.is_quarantined:
            found = judged.condition((key, address), found, windows, 0)
        assert (row.condition, row.condition_reason) == (found.condition, found.reason)
        return list_place(found.condition, address), -found.severity, row.key.engine, address

    assert [*full.peers] == sorted(full.peers, key=order)
    names = {*request.peers} or {*"pqrst", "unknown"}
    known = {
        (engine, peer): kind
        for (agent, engine, peer), (kind, _) in of.items()
        if agent == "a" and peer in names
    }
    states = {"retired": {"gone"}, "all": {*_KINDS}}
    wanted = states.get(request.state, {*_KINDS} - {"gone"})
    rows = {(row.key.engine, row.peer.address): row for row in full.peers}
    assert {*rows} == {place for place, kind in known.items() if kind in wanted}
    assert all(row.retired == (known[place] == "gone") for place, row in rows.items())
    assert (full.total, full.left_out) == (len(rows), len(known) - len(rows))
    assert full.total_peers == len({peer for _, peer in rows})


@settings(max_examples=examples(200))
@given(cells, requests, st.integers(1, 12))
def test_the_worst_are_the_first_of_the_full_list(
    of: _Cells, request: admin.ListPeersRequest, limit: int
) -> None:
    """The same rows, in the same order; the totals are of the full list."""
    full, found = _listed(of, request), _listed(of, _asked(request, limit=limit))

    assert [*found.peers] == full.peers[:limit]
    assert (found.total, found.total_peers, found.left_out) == (full.total, full.total_peers, full.left_out)


@settings(max_examples=examples(200))
@given(cells, requests, st.integers(1, 4), st.integers(1, 3))
def test_a_table_says_what_the_full_list_would(
    of: _Cells, request: admin.ListPeersRequest, peers: int, engines: int
) -> None:
    """The page draws the same from both."""
    full = _listed(of, request)
    found = _listed(of, _asked(request, most_peers=peers, most_engines=engines))

    assert [*found.peers] == table_rows([*full.peers], peers, engines)
    assert _drawn(found, peers, engines) == _drawn(full, peers, engines)


@settings(max_examples=examples(200))
@given(cells, st.integers(0, 6))
def test_a_relay_has_the_worst_of_all_agents(of: _Cells, limit: int) -> None:
    """Each agent's worst, merged, are those of the merged full lists; one that knows no limit answers with all."""
    request, whole = admin.ListPeersRequest(limit=limit, state="all"), admin.ListPeersRequest(state="all")
    full = merge_peers([(name, _listed(of, whole, name)) for name in _AGENTS], whole)
    for old in (None, *_AGENTS):
        answers = [(name, _listed(of, whole if name == old else request, name)) for name in _AGENTS]
        if old is not None:
            answers[_AGENTS.index(old)][1].ClearField("total")
        found = merge_peers(answers, request)
        assert [*found.peers] == full.peers[: limit or None]
        assert (found.total, found.left_out) == (full.total, full.left_out)
        assert found.total_peers in {0, full.total_peers}
    assert full.total_peers == len({row.peer.address for row in full.peers})


@settings(max_examples=examples(200))
@given(cells, st.integers(1, 4), st.integers(1, 3))
def test_a_relay_s_table_has_all_cells(of: _Cells, peers: int, engines: int) -> None:
    """Also those of a peer that is among the worst at another agent only."""
    request, whole = admin.ListPeersRequest(most_peers=peers, most_engines=engines), admin.ListPeersRequest()
    full = merge_peers([(name, _listed(of, whole, name)) for name in _AGENTS], whole)
    found = merge_peers([(name, _listed(of, request, name)) for name in _AGENTS], request)
    cells_of = cells_request(found, request)
    owners = {key.server for key in cells_of.selector.engines}
    asked = admin.ListPeersRequest(peers=cells_of.peers)
    more = [(name, _listed(of, asked, name)) for name in _AGENTS if name in owners]
    add_cells(found, more, cells_of)

    assert _drawn(found, peers, engines) == _drawn(full, peers, engines)


def _drawn(answer: admin.ListPeersResponse, peers: int, engines: int) -> tuple[object, ...]:
    with (
        patch.object(screen_tables, "MOST_PEERS", peers),
        patch.object(screen_tables, "MOST_ENGINES", engines),
    ):
        table: Peers = screen_tables.peer_table(ScreenAnswers(0.0, peers=answer))
    return table.engines, table.rows


def test_a_call_asks_for_the_worst(harness: AdminHarness) -> None:
    """Over gRPC: the failing one first, the rest counted; a table that is none is refused."""
    core = harness.source("0")
    statuses = [{"peer": {"address": f"10.0.0.{number}:1"}, "connected": True} for number in range(9)]
    harness.snapshot(core, Snapshot(time_unix_nano=time.time_ns(), peers=statuses))
    harness.append(core, transfer_failure("r", peer="10.0.0.7:1", time_ns=time.time_ns()))
    found = harness.stub.ListPeers(admin.ListPeersRequest(limit=2))
    assert [row.peer.address for row in found.peers] == ["10.0.0.7:1", "10.0.0.0:1"]
    assert found.peers[0].condition == admin.PEER_CONDITION_UNREACHABLE
    assert (found.total, found.total_peers) == (9, 9)
    named = harness.stub.ListPeers(admin.ListPeersRequest(peers=["10.0.0.3:1", "no"]))
    assert [row.peer.address for row in named.peers] == ["10.0.0.3:1"]
    half: list[dict[str, Any]] = [{"most_peers": 3}, {"most_engines": 3}]
    for wrong in (*half, {"most_peers": 3, "most_engines": 1, "limit": 1}):
        with pytest.raises(grpc.RpcError, match="most_peers and most_engines") as caught:
            harness.stub.ListPeers(admin.ListPeersRequest(**wrong))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
