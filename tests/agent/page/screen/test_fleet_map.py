"""The map as the page gets it: boxes with what they stand for, edges with their look, within the bytes of a message."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.fleet_map import grouped, whole_map
from penstock.agent.page.screen import encoded_map, shown_map
from penstock.agent.page.wire import MAX_MESSAGE_BYTES
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

_NOW = 1_800_000_000.0


def _engine(name: str, role: int = common.ROLE_DECODE, *, connected: bool = True) -> admin.Engine:
    return admin.Engine(key={"server": name, "engine": "0"}, role=role, connected=connected)  # type: ignore[arg-type]


def _row(engine: str, address: str, peer: str = "", **fields: Any) -> admin.PeerSummary:
    row = admin.PeerSummary(key={"server": engine, "engine": "0"}, peer={"address": address}, **fields)
    if peer:
        row.engine.server, row.engine.engine = peer, "0"
    return row


def _shown(engines: list[admin.Engine], rows: list[admin.PeerSummary]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encoded_map(shown_map(grouped(whole_map(engines, rows)), _NOW)))
    return found


def test_an_edge_has_its_look_and_who_says_it() -> None:
    """A box stands for its engine and for the addresses that its peers know it at."""
    row = _row(
        "decode",
        "10.0.0.1:5600",
        "prefill",
        condition=admin.PEER_CONDITION_FAILING,
        condition_reason="3 of 4 failed",
        traffic=[
            {
                "channel": common.CHANNEL_KV,
                "direction": common.DIRECTION_RECEIVE,
                "last_15_minutes": {"bytes": 900 * 10**9, "transfers_ok": 1, "transfers_failed": 3},
            }
        ],
    )
    found = _shown([_engine("prefill", common.ROLE_PREFILL), _engine("decode")], [row])

    assert [column["title"] for column in found["columns"]] == ["prefills", "decodes"]
    prefill, decode = (column["boxes"][0] for column in found["columns"])
    assert prefill == {
        "name": "prefill/0",
        "notes": ["in trouble"],
        "kind": "trouble",
        "engines": ["prefill/0"],
        "peers": ["10.0.0.1:5600"],
    }
    assert (decode["engines"], decode["peers"]) == (["decode/0"], ["decode/0"])
    (edge,) = found["edges"]
    assert (edge["source"], edge["target"], edge["state"], edge["dashes"]) == (
        "prefill/0",
        "decode/0",
        "error",
        "10 4",
    )
    assert edge["width"] == 4.0
    assert edge["words"] == ["failing", "kv 1 GB/s", "75% failed"]
    assert (edge["engine"], edge["peer"]) == ("decode/0", "10.0.0.1:5600")
    assert edge["cells"][:4] == ["prefill/0", "decode/0", "kv", "failing"]
    assert len(edge["cells"]) == len(found["headers"])


def test_a_group_stands_for_its_members_and_their_addresses() -> None:
    """A sum names no engine and no address."""
    engines = [_engine(f"p{number}", common.ROLE_PREFILL) for number in range(7)]
    engines += [_engine(f"d{number}") for number in range(7)]
    rows = [
        _row(f"d{one}", f"10.0.0.{other}:1", f"p{other}", condition=admin.PEER_CONDITION_OK)
        for one in range(7)
        for other in range(7)
    ]
    found = _shown(engines, rows)

    (prefills,), (decodes,) = (column["boxes"] for column in found["columns"])
    assert prefills["kind"] == decodes["kind"] == "group"
    assert prefills["engines"] == [f"p{number}/0" for number in range(7)]
    assert prefills["peers"] == [f"10.0.0.{number}:1" for number in range(7)]
    (edge,) = found["edges"]
    assert (edge["source"], edge["target"]) == (prefills["name"], decodes["name"])
    assert (edge["engine"], edge["peer"]) == ("", "")


@given(
    names=st.lists(st.text(min_size=1, max_size=1_000), min_size=1, max_size=40, unique=True),
    most=st.integers(2_000, MAX_MESSAGE_BYTES),
)
def test_a_map_fits_whatever_engines_call_themselves(names: list[str], most: int) -> None:
    """It says that a part is left out, and no edge is without its boxes but where boxes are left out, too."""
    rows = [_row(name, f"10.0.0.{number}:1") for number, name in enumerate(names)]
    shown = shown_map(grouped(whole_map([_engine(name) for name in names], rows)), _NOW)
    encoded = encoded_map(shown, most)

    found = json.loads(encoded)
    assert len(encoded) <= most or not (found["edges"] or any(column["boxes"] for column in found["columns"]))
    if len(found["edges"]) < len(shown.edges):
        assert "left out" in found["sentence"]
