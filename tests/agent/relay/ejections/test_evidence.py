"""Servers and votes, of what agents say: one vote an agent, and what is no evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.model import EngineKey
from penstock.agent.relay.ejections.evidence import Vote, servers_of, votes_of
from penstock.agent.views.router_feed import PeerReading
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ROLE_BOTH, ROLE_PREFILL, Role
from penstock.proto.v1.common_pb2 import EngineKey as Key

if TYPE_CHECKING:
    from penstock.agent.views.router_feed.model import State

_ADDRESS = "10.0.0.1:5600"
_OTHER = "10.0.0.2:5600"


def _engine(
    server: str,
    address: str = _ADDRESS,
    *,
    role: Role = ROLE_PREFILL,
    engine: str = "0",
    connected: bool = True,
) -> admin.Engine:
    return admin.Engine(
        key=Key(server=server, engine=engine), connected=connected, role=role,
        facts={"model": "m", "side_channel": address},
    )  # fmt: skip


def _reading(
    reader: str,
    state: State = "failing",
    *,
    address: str = _ADDRESS,
    failures: int = 4,
    cause: str = "peer_refuses",
    why: str = "bad",
) -> PeerReading:
    return PeerReading(
        Key(server=reader, engine="0"), address, state, why, failures, "" if state == "ok" else cause
    )


def test_servers_of_a_fleet() -> None:
    """By server, with its engines, its pools and the addresses that nobody else claims."""
    ejected = _engine("c", "10.0.0.3:5600", role=ROLE_BOTH)
    ejected.ejection.author = "maria"
    found = servers_of(
        [
            _engine("a/x"), _engine("a/x", "10.0.0.9:5601", engine="1"), _engine("b", _OTHER), _engine("b/y", _OTHER),
            ejected, _engine("gone", connected=False), _engine("d", "127.0.0.1:5600"), _engine("e", "localhost:1"),
            _engine("f", "[::1]:1"), _engine("g", "nonsense"), _engine("h", "0.0.0.0:1"),
        ]
    )  # fmt: skip
    assert [(each.name, each.agent, each.addresses) for each in found] == [
        ("a/x", "a", ("10.0.0.1:5600", "10.0.0.9:5601")),
        ("b", "b", ()),
        ("b/y", "b", ()),
        ("c", "c", ("10.0.0.3:5600",)),
        ("d", "d", ()),
        ("e", "e", ()),
        ("f", "f", ()),
        ("g", "g", ()),
        ("h", "h", ()),
    ]
    assert found[0].keys == (EngineKey("a/x", "0"), EngineKey("a/x", "1"))
    assert found[3].pools == {"prefill servers of m", "decode servers of m"}
    assert found[3].order is not None
    assert found[0].order is None


def test_an_agent_has_one_vote() -> None:
    """Several engines of it agree once; their failures add up; it has none on its own server."""
    servers = servers_of([_engine("p")])
    readings = [
        _reading("a/1", failures=2),
        _reading("a/2", failures=3, why=""),
        _reading("b", "ok"),
        _reading("p/z"),
        _reading("c", "unknown"),
        _reading("d", "slow", cause="peer_slow"),
        _reading("e", "incompatible", cause="incompatible_peer"),
    ]
    assert votes_of(readings, servers, ()) == {
        "p": [
            Vote("a", True, 5, "bad"),
            Vote("b", False, 0, ""),
            Vote("d", False, 0, ""),
            Vote("e", False, 0, ""),
        ]
    }


def test_what_is_no_evidence() -> None:
    """Failures and a quarantine without a cause; loads that a drill makes fail; an address that is no server's."""
    servers = servers_of([_engine("p")])
    readings = [
        _reading("a", "quarantined"),
        _reading("b", "quarantined", cause=""),
        _reading("e", "failing", cause=""),
        _reading("c"),
        _reading("d", address="10.9.9.9:1"),
    ]
    assert votes_of(readings, servers, {EngineKey("c", "0")}) == {
        "p": [Vote("a", True, 4, "bad"), Vote("b", False, 0, ""), Vote("e", False, 0, "")]
    }


def test_a_reader_that_accuses_all_accuses_itself() -> None:
    """With two servers or more, all of them bad: its own network is, or it lies. With one it cannot be told."""
    servers = servers_of([_engine("p"), _engine("q", _OTHER)])
    readings = [
        _reading("liar"),
        _reading("liar", address=_OTHER),
        _reading("a"),
        _reading("a", "ok", address=_OTHER),
        _reading("b"),
    ]
    assert votes_of(readings, servers, ()) == {
        "p": [Vote("a", True, 4, "bad"), Vote("b", True, 4, "bad")],
        "q": [Vote("a", False, 0, "")],
    }
