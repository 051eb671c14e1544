"""The map of answers: who sends to whom, what is not known, and how two ends tell of one edge."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.badness import badness
from penstock.agent.fleet_map.build import whole_map
from penstock.agent.fleet_map.model import ROLES, WINDOW_SECONDS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.metric_logs import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.fleet_map.model import FleetMap, MapEdge

_KV, _EC, _EPLB = common.CHANNEL_KV, common.CHANNEL_EC, common.CHANNEL_EPLB
_GETS, _SENDS = common.DIRECTION_RECEIVE, common.DIRECTION_SEND
_SLOW, _LOST = admin.PEER_CONDITION_SLOW, admin.PEER_CONDITION_LOST
_P, _D = "10.0.0.1:5600", "10.0.0.2:5600"


def _engine(server: str, role: int, pool: str = "", **fields: Any) -> admin.Engine:
    labels = {"pool": pool} if pool else {}
    return admin.Engine(key={"server": server, "engine": "0"}, role=role, labels=labels, **fields)  # type: ignore[arg-type]


def _way(
    direction: int, size: int | None = 0, ok: int = 1, failed: int = 0, channel: int = _KV
) -> admin.PeerTraffic:
    window = admin.TrafficWindow(transfers_ok=ok, transfers_failed=failed, bytes=size)
    return admin.PeerTraffic(channel=channel, direction=direction, last_15_minutes=window)  # type: ignore[arg-type]


def _row(
    server: str,
    address: str,
    *ways: admin.PeerTraffic,
    peer: str = "",
    condition: int = admin.PEER_CONDITION_OK,
    **fields: Any,
) -> admin.PeerSummary:
    row = admin.PeerSummary(
        key={"server": server, "engine": "0"},
        peer={"address": address},
        traffic=ways,
        condition=condition,  # type: ignore[arg-type]
        **fields,
    )
    if peer:
        row.engine.server, row.engine.engine = peer, "0"
    return row


_ENGINES = (
    _engine("e", common.ROLE_ENCODER),
    _engine("p", common.ROLE_PREFILL, "a", connected=True),
    _engine("d", common.ROLE_DECODE, "a"),
)


def _ends(found: FleetMap) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.channel) for edge in found.edges]


def _only(found: FleetMap) -> MapEdge:
    (edge,) = found.edges
    return edge


@pytest.mark.parametrize(
    ("row", "ends"),
    [
        (_row("d", _P, _way(_GETS), peer="p"), [("p/0", "d/0", "kv")]),
        (_row("p", _D, _way(_SENDS), peer="d"), [("p/0", "d/0", "kv")]),
        (_row("p", "x", _way(_GETS, channel=_EC), peer="e"), [("e/0", "p/0", "ec")]),
        (_row("d", _P, _way(_GETS), _way(_SENDS), peer="p"), [("d/0", "p/0", "kv"), ("p/0", "d/0", "kv")]),
        (_row("d", "host", _way(_SENDS)), [("d/0", "host", "kv")]),
        (_row("d", "", _way(_GETS)), [("unknown", "d/0", "kv")]),
        (_row("d", "rank:3", _way(_GETS, channel=_EPLB)), []),
        (_row("d", "x", _way(_GETS, channel=_EPLB)), []),
        (_row("new", _P, _way(_GETS), peer="p"), [("p/0", "new/0", "kv")]),
        # Nothing tells the direction: by the roles.
        (_row("d", _P, peer="p"), [("p/0", "d/0", "kv")]),
        (_row("p", _D, peer="d"), [("p/0", "d/0", "kv")]),
        (_row("p", "x", peer="e"), [("e/0", "p/0", "ec")]),
        (_row("e", "x", peer="p"), [("e/0", "p/0", "ec")]),
        (_row("d", "x"), [("x", "d/0", "kv")]),
    ],
)
def test_state_goes_where_the_direction_says(
    row: admin.PeerSummary, ends: list[tuple[str, str, str]]
) -> None:
    """Seen from the engine that reports; ranks of EPLB are no nodes."""
    found = whole_map(_ENGINES, [row])
    assert _ends(found) == ends
    assert {node.name for node in found.nodes} == {"e/0", "p/0", "d/0"} | {n for e in ends for n in e[:2]}


def test_nodes_have_role_pool_and_presence() -> None:
    """By column; the facts of an engine know its role better."""
    away = _engine("b", common.ROLE_PREFILL, last_seen={"seconds": 7}, facts={"role": common.ROLE_BOTH})
    found = whole_map([*_ENGINES, away], [_row("d", "x", _way(_GETS))])
    assert [(each.name, each.role, each.pool, each.connected) for each in found.nodes] == [
        ("e/0", "encoder", "", False),
        ("p/0", "prefill", "a", True),
        ("b/0", "both", "", False),
        ("d/0", "decode", "a", False),
        ("x", "other", "", False),
    ]
    assert [each.away_since_unix_nano for each in found.nodes if each.name == "b/0"] == [7 * 10**9]


@pytest.mark.parametrize(
    ("row", "rate", "transfers", "failed", "share"),
    [
        (_row("d", _P, _way(_GETS, 900, ok=3, failed=1)), 1.0, 4, 1, 0.25),
        # An older agent, which has counted transfers and does not tell what they moved.
        (_row("d", _P, transfers_ok=5), None, None, None, None),
        (_row("d", _P, transfers_ok=5, failures_last_15_minutes=2), None, None, None, None),
        # No transfer has told its size, and no window.
        (_row("d", _P, _way(_GETS, None)), None, 1, 0, 0.0),
        (_row("d", _P, admin.PeerTraffic(channel=_KV, direction=_GETS)), None, None, None, None),
        # Nothing was ever moved.
        (_row("d", _P), 0.0, None, None, None),
        (_row("d", _P, failures_last_15_minutes=0), 0.0, 0, 0, None),
        (_row("d", _P, failures_last_15_minutes=4), 0.0, 4, 4, 1.0),
        # A handshake that fails is an attempt and no transfer.
        (_row("d", _P, _way(_GETS, 0, ok=1), failures_last_15_minutes=3), 0.0, 4, 3, 0.75),
        (_row("d", _P, _way(_GETS, 0, ok=0)), 0.0, 0, 0, None),
    ],
)
def test_what_is_not_known_is_not_zero(
    row: admin.PeerSummary, rate: float | None, transfers: int | None, failed: int | None, share: float | None
) -> None:
    """Bytes, transfers and failures of 15 minutes."""
    edge = _only(whole_map(_ENGINES, [row]))
    assert (edge.bytes_per_second, edge.transfers, edge.failed) == (rate, transfers, failed)
    assert edge.failed_share == share


def test_both_ends_tell_of_one_edge() -> None:
    """Theirs are the same transfers: the one that has seen more counts. The worse condition does."""
    rows = [
        _row("d", _P, _way(_GETS, 900, ok=3), peer="p", condition=_SLOW, condition_reason="late"),
        _row("d", "again", _way(_GETS, 1800, ok=1), peer="p"),
        _row("p", _D, _way(_SENDS, 1800, ok=2, failed=1), peer="d", condition=_LOST, cause="gone"),
    ]
    edge = _only(whole_map(_ENGINES, rows))
    assert (edge.source, edge.target, edge.bytes_per_second) == ("p/0", "d/0", 2700 / WINDOW_SECONDS)
    assert (edge.transfers, edge.failed) == (4, 0)
    assert (edge.condition, edge.cause, edge.at) == (_LOST, "gone", "d/0")


def test_what_many_edges_have_in_common_is_in_trouble() -> None:
    """One decode that cannot read is at fault for three edges; of one edge it is the peer."""
    rows = [_row("d", f"p{number}", _way(_GETS), condition=_LOST) for number in range(3)]
    found = whole_map(_ENGINES, rows)
    assert {edge.at for edge in found.edges} == {"d/0"}
    assert [node.name for node in found.nodes if node.in_trouble] == ["d/0"]
    assert {edge.at for edge in whole_map(_ENGINES, rows[:1]).edges} == {"p0"}


def test_speeds_are_those_of_the_slowest_rank() -> None:
    """Against its usual, of the same channel; what is no number is not known."""
    speeds = [
        {"channel": _KV, "bytes_per_second": 9.0, "count": 3, "usual_bytes_per_second": 10.0, "usual_count": 9},
        {"channel": _KV, "rank": 1, "bytes_per_second": 5.0, "count": 3, "usual_ratio": 0.5,
         "usual_bytes_per_second": 10.0, "usual_count": 9},
        {"channel": _EC, "bytes_per_second": float("nan"), "count": 3, "usual_bytes_per_second": 1.0},
    ]  # fmt: skip
    pair = admin.PairEngine(
        key={"server": "d", "engine": "0"},
        peers=[{"status": {"peer": {"address": _P}}, "speeds": speeds}],
    )
    rows = [_row("d", _P, _way(_GETS), _way(_GETS, channel=_EC), peer="p")]
    ec, kv = whole_map(_ENGINES, rows, [pair]).edges
    assert (kv.speed, kv.usual_speed, ec.speed, ec.usual_speed) == (5.0, 10.0, None, None)
    assert whole_map(_ENGINES, rows).edges[1].speed is None


def test_only_the_edges_of_what_is_named() -> None:
    """By an engine's name or by its address; other nodes are left out."""
    rows = [_row("d", _P, _way(_GETS), peer="p"), _row("d", "x", _way(_GETS)), _row("p", "y", _way(_GETS))]
    for name in (_P, "p/0"):
        found = whole_map(_ENGINES, rows, only=[name])
        assert _ends(found) == [("p/0", "d/0", "kv"), ("y", "p/0", "kv")]
        assert {node.name for node in found.nodes} == {"d/0", "p/0", "y"}
    assert [node.name for node in whole_map(_ENGINES, rows, only=["e/0"]).nodes] == ["e/0"]
    assert {node.name for node in whole_map(_ENGINES, rows[:1], alone=False).nodes} == {"d/0", "p/0"}


_NAMES = st.sampled_from(["p", "d", "e", "q"])
_ROWS = st.lists(
    st.builds(
        lambda server, address, peer, ways, condition, failures: _row(
            server, address, *ways, peer=peer, condition=condition, failures_last_15_minutes=failures
        ),
        _NAMES,
        st.sampled_from([_P, _D, "x", "host", "rank:1", "", "p/0"]),
        st.one_of(st.just(""), _NAMES),
        st.lists(
            st.builds(
                _way,
                st.sampled_from([0, _GETS, _SENDS, 9]),
                st.one_of(st.none(), st.integers(0, 1 << 50)),
                st.integers(0, 9),
                st.integers(0, 9),
                st.sampled_from([0, _KV, _EC, _EPLB, 9]),
            ),
            max_size=3,
        ),
        st.sampled_from([*admin.PeerCondition.values(), 99]),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=12,
)


def _shuffled(rows: Sequence[admin.PeerSummary], seed: int) -> list[admin.PeerSummary]:
    return random.Random(seed).sample(rows, len(rows))


@UNTIMED
@given(_ROWS, st.integers(0, 9))
def test_any_rows_make_a_map(rows: list[admin.PeerSummary], seed: int) -> None:
    """The worst first, whatever the order of the rows; each end is a node, each edge as bad as its worst row."""
    found = whole_map(_ENGINES, rows)
    assert found == whole_map(_ENGINES, _shuffled(rows, seed))
    assert list(found.edges) == sorted(found.edges, key=lambda edge: edge.place)
    names = [node.name for node in found.nodes]
    assert len(names) == len(set(names))
    assert len(_ends(found)) == len(set(_ends(found)))
    for edge in found.edges:
        assert {edge.source, edge.target} <= {*names}
        assert edge.at in {"", edge.source, edge.target}
        assert bool(edge.at) == bool(badness(edge.condition)) == bool(edge.links_in_trouble)
        assert edge.failed_share is None or 0 <= edge.failed_share <= 1
    assert {node.role for node in found.nodes} <= {*ROLES}
    shown = [row.condition for row in rows if not row.peer.address.startswith("rank:")]
    assert max((badness(edge.condition) for edge in found.edges), default=0) <= max(
        map(badness, shown), default=0
    )
