"""What an order out of rotation leaves."""

from __future__ import annotations

import pytest
from penstock.agent.views.orders import emptied_pools
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
