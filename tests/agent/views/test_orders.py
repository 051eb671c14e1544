"""What an order out of rotation leaves, and the list of such orders."""

from __future__ import annotations

import pytest
from penstock.agent.views.orders import ejections, emptied_pools
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

_ROLES = {
    "p": common.ROLE_PREFILL,
    "d": common.ROLE_DECODE,
    "e": common.ROLE_ENCODER,
    "b": common.ROLE_BOTH,
    "?": common.ROLE_UNSPECIFIED,
}


def _engine(name: str) -> admin.Engine:
    """Return the engine of a server ``p1``; ``!`` behind it: out of rotation; ``~``: not connected; ``/m``: of that model."""
    server, _, model = name.partition("/")
    found = admin.Engine(
        key={"server": server.strip("!~"), "engine": "0"},
        connected="~" not in server,
        role=_ROLES[server[0]],
        facts={"model": model},
    )
    if "!" in server:
        found.ejection.in_force = True
    return found


@pytest.mark.parametrize(
    ("known", "out", "emptied"),
    [
        ("p1 p2 d1", "p1", []),
        ("p1 p2 d1", "p1 p2", ["prefill servers"]),
        ("p1 p2! d1", "p1", ["prefill servers"]),
        ("p1 p2~ d1", "p1", ["prefill servers"]),
        ("p1 d1", "p1 d1", ["decode servers", "prefill servers"]),
        # Nothing gets worse.
        ("p1! d1", "p1", []),
        ("p1 b1", "p1", []),
        ("p1 b1", "b1", ["decode servers"]),
        ("p1/a p2/b d1/a", "p1", ["prefill servers of a"]),
        ("e1 d1", "e1", ["encoder servers"]),
        ("?1 ?2", "?1 ?2", []),
        # An agent that has one server knows nothing of the others.
        ("p1", "p1", []),
        ("p1 p2~", "p1", []),
        ("", "", []),
    ],
)
def test_pools_without_a_server(known: str, out: str, emptied: list[str]) -> None:
    """By role and model, of those that are connected and in rotation; a server of both roles counts for both."""
    assert emptied_pools(map(_engine, known.split()), set(out.split())) == emptied


def test_the_list_of_ejections() -> None:
    """Who is out by whom, who is on the way, and what the leading relay makes of others."""
    key = {"server": "p", "engine": "0"}
    order = {"since": {"seconds": 40}, "until": {"seconds": 160}, "author": "maria", "reason": "INC-7"}
    rows = [
        admin.ServerEjection(key=key, order={**order, "in_force": True}, address="10.0.0.1:1"),
        admin.ServerEjection(key=key, order=order),
        admin.ServerEjection(key=key, order={"until": {"seconds": 160}, "in_force": True}),
        admin.ServerEjection(
            key=key, verdict="held_back", why="too many", since={"seconds": 70}, policy="sick"
        ),
        admin.ServerEjection(key=key),
    ]
    plain = [tuple(str(cell) for cell in row) for row in ejections(rows, 100.0).rows]
    assert [row[0] for row in plain] == ["p/0"] * len(rows)
    words = ["out", "going out", "coming back", "held back", "-"]
    assert [word in row[1] for word, row in zip(words, plain, strict=True)] == [True] * len(rows)
    assert plain[0][2:] == ("60s ago", "in 60s", "maria", "INC-7", "10.0.0.1:1")
    assert plain[3][2:] == ("30s ago", "-", "policy sick", "too many", "-")
