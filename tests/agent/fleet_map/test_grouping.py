"""A map that people can read: groups, sums, and what is in trouble beside them, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.badness import badness
from penstock.agent.fleet_map.build import whole_map
from penstock.agent.fleet_map.grouping import MOST_EDGES, MOST_NODES, grouped
from penstock.agent.fleet_map.model import ROLES, FleetMap, MapEdge, MapNode, in_columns
from penstock.agent.fleet_map.table import edge_rows, group_counts, group_rows, left_out_words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.metric_logs import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Iterable

_OK, _SLOW, _FAILING = (
    admin.PEER_CONDITION_OK,
    admin.PEER_CONDITION_SLOW,
    admin.PEER_CONDITION_FAILING,
)


def _edge(source: str, target: str, condition: int = _OK, at: str = "", **fields: Any) -> MapEdge:
    bad = bool(badness(condition))
    return MapEdge(source, target, "kv", condition, at=at if bad else "", links_in_trouble=int(bad), **fields)


def _fleet(edges: Iterable[MapEdge], prefills: int = 8, decodes: int = 8, pool: str = "a") -> FleetMap:
    edges = sorted(edges, key=lambda edge: edge.place)
    trouble = {edge.at for edge in edges}
    nodes = [
        MapNode(f"{role[0]}{number}", role, pool, True, number > 0, 0, f"{role[0]}{number}" in trouble)
        for role, count in (("prefill", prefills), ("decode", decodes))
        for number in range(count)
    ]
    return FleetMap(in_columns(nodes), tuple(edges))


def test_few_nodes_stay_as_they_are() -> None:
    """Up to twelve."""
    whole = _fleet([_edge("p1", "d1")], 6, 6)
    assert grouped(whole) == whole


def test_edges_between_groups_are_summed() -> None:
    """As bad as the worst, with how many of how many; what is known of rates and failures adds up."""
    edges = [
        _edge("p1", "d1", bytes_per_second=2.0, transfers=8, failed=1, usual_speed=5.0),
        _edge("p1", "d2", bytes_per_second=None, transfers=None),
        _edge("p2", "d3", _SLOW, "p2", bytes_per_second=3.0, transfers=2, failed=1, since_unix_nano=9, usual_speed=7.0),
        _edge("p2", "d4", _SLOW, "p2", since_unix_nano=4, usual_speed=9.0),
    ]  # fmt: skip
    found = grouped(_fleet(edges))
    star, total = sorted(found.edges, key=lambda edge: edge.links)
    assert (total.source, total.target, total.links, total.links_in_trouble) == (
        "prefill · a",
        "decode · a",
        4,
        2,
    )
    assert (total.bytes_per_second, total.transfers, total.failed, total.condition) == (5.0, 10, 2, _SLOW)
    assert (total.since_unix_nano, total.usual_speed, total.at) == (4, 7.0, "")
    assert (star.source, star.target, star.links, star.links_in_trouble, star.at) == (
        "p2",
        "decode · a",
        2,
        2,
        "p2",
    )
    assert [node.name for node in found.nodes] == ["p2"]
    prefills, decodes = found.groups
    assert prefills.name == "prefill · a"
    assert [*group_counts(prefills)] == ["8 engines", "1 in trouble", "1 away"]
    assert (decodes.engines, decodes.in_trouble, len(decodes.members)) == (8, 0, 8)


def test_one_edge_in_trouble_names_both_ends() -> None:
    """Beside the sum; the other edges of the node stay in the group."""
    found = grouped(_fleet([_edge("p1", "d1", _FAILING, "p1"), _edge("p1", "d2"), _edge("p2", "d2")]))
    assert [(edge.source, edge.target, edge.links) for edge in found.edges] == [
        ("p1", "d1", 1),
        ("prefill · a", "decode · a", 3),
    ]
    assert [node.name for node in found.nodes] == ["p1", "d1"]


def test_a_group_has_the_name_of_no_node() -> None:
    """Names of engines are free."""
    nodes = [MapNode(f"p{number}", "prefill") for number in range(12)]
    found = grouped(FleetMap((MapNode("prefill", "prefill"), *nodes), ()))
    assert [group.name for group in found.groups] == ["prefill*"]


_ENDS = st.integers(0, 19)
_MAPS = st.lists(
    st.tuples(_ENDS, _ENDS, st.sampled_from([_OK, _SLOW, _FAILING, 0, 99]), st.booleans()),
    max_size=150,
    unique_by=lambda row: row[:2],
)


@UNTIMED
@given(_MAPS, st.integers(0, 19), st.integers(2, 60))
def test_any_map_is_bounded_and_says_what_it_leaves_out(
    rows: list[tuple[int, int, int, bool]], pools: int, most: int
) -> None:
    """The worst edge is there, each node is in one group, and sums have all links."""
    edges = sorted(
        (
            _edge(f"n{one}", f"n{other}", condition, f"n{one if first else other}", bytes_per_second=1.0)
            for one, other, condition, first in rows
        ),
        key=lambda edge: edge.place,
    )
    trouble = {edge.at for edge in edges}
    whole = FleetMap(
        in_columns(
            MapNode(f"n{number}", ROLES[number % 5], f"pool{number % (pools + 1)}", in_trouble=f"n{number}" in trouble)
            for number in range(20)
        ),
        tuple(edges),
    )  # fmt: skip
    found = grouped(whole, most_edges=most)
    assert len(found.edges) <= most
    assert bool(found.left_out) == bool(left_out_words(found))
    assert sorted(member for group in found.groups for member in group.members) == sorted(
        node.name for node in whole.nodes
    )
    assert list(found.edges) == sorted(found.edges, key=lambda edge: edge.place)
    if edges:
        assert found.edges[0].condition == edges[0].condition
    names = {group.name for group in found.groups} | {node.name for node in found.nodes}
    assert {end for edge in found.edges for end in (edge.source, edge.target)} <= names
    everything = grouped(whole, most_edges=10_000)
    assert everything.left_out == 0
    assert len(everything.edges) == len(found.edges) + found.left_out
    groups = {group.name for group in everything.groups}
    sums = [edge for edge in everything.edges if {edge.source, edge.target} <= groups]
    assert sum(edge.links for edge in sums) == len(edges) == sum(edge.bytes_per_second or 0 for edge in sums)
    assert sum(edge.links_in_trouble for edge in sums) == sum(edge.links_in_trouble for edge in edges)


def test_256_engines_with_100_peers_are_a_map_of_few_lines() -> None:
    """Of 25,600 edges at most 40 are drawn, and the nodes that they name; one prefill is slow for everybody."""
    engines = [
        admin.Engine(
            key={"server": f"{role}-{number:03}", "engine": "0"},
            role=value,
            labels={"pool": f"pool-{number % 4}"},
            connected=True,
        )
        for role, value in (("prefill", common.ROLE_PREFILL), ("decode", common.ROLE_DECODE))
        for number in range(128)
    ]
    rows = [
        admin.PeerSummary(
            key=engine.key,
            peer={"address": f"10.0.0.{number}:5600"},
            engine={"server": f"prefill-{number:03}", "engine": "0"},
            condition=_SLOW if number == 7 or (number + index) % 97 == 0 else _OK,
            traffic=[
                {
                    "channel": common.CHANNEL_KV,
                    "direction": common.DIRECTION_RECEIVE,
                    "last_15_minutes": {"transfers_ok": 9, "bytes": 9 << 30},
                }
            ],
        )
        for index, engine in enumerate(engines)
        for number in range(100)
    ]
    whole = whole_map(engines, rows)
    assert len(whole.edges) == 25_600
    found = grouped(whole)
    assert len(found.edges) == MOST_EDGES
    assert len(found.groups) == 8
    assert len(found.nodes) <= 2 * MOST_EDGES
    assert any(edge.at == "prefill-007/0" for edge in found.edges)
    assert len(edge_rows(found, 0).rows) + len(group_rows(found).rows) <= MOST_EDGES + MOST_NODES
