"""``get pairs``."""

from __future__ import annotations

from penstock.agent.views.peers import pair_reason, pair_rows, speed_words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

_GOOD = {
    "key": EngineKey(server="d", engine="0"),
    "peer_key": EngineKey(server="p", engine="0"),
    "compatible": admin.PAIR_COMPATIBILITY_YES,
    "weights": admin.PAIR_WEIGHTS_SAME,
    "geometry": "TP1",
    "peer_geometry": "TP1",
    "reason": "they have shaken hands",
}


def pair(**changed: object) -> admin.Pair:
    """Build a good pair with *changed* fields."""
    return admin.Pair(**{**_GOOD, **changed})  # type: ignore[arg-type]


def test_a_row_says_what_differs() -> None:
    """Both sides where they differ, speed against the usual, and why."""
    item = pair(
        peer_geometry="TP2",
        differences=[{"fact": "block_size", "value": "16", "peer_value": "32"}],
        speed={"bytes_per_second": 5e8, "count": 9, "usual_bytes_per_second": 49e9, "usual_count": 99, "usual_ratio": 0.01},
        transport="UCX tls=tcp (VRAM)",
    )  # fmt: skip
    table = pair_rows([item, pair(peer={"address": "p:1"})])
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert (row["ENGINE"], row["PEER"], row["COMPATIBLE"]) == ("d/0", "p/0", "yes")
    assert (row["GEOMETRY"], row["WEIGHTS"], row["USUAL"]) == ("TP1 ≠ TP2", "same", "49 GB/s (1%)")
    assert "500 MB/s" in row["BYTES/S"]
    assert row["WHY"] == "they have shaken hands; block_size 16≠32"
    assert dict(zip(table.headers, table.rows[1], strict=True))["BYTES/S"] == "-"
    assert pair_reason(pair()) == "they have shaken hands"
    assert [speed_words(value) for value in (12.0, 3.8e5, 1.2e12)] == ["12 B/s", "380 kB/s", "1.2e+03 GB/s"]


def test_a_speed_that_is_seen_late_is_a_lower_bound() -> None:
    """The engine looks once a second: the pair may be a hundred times as fast; a little faster changes nothing."""
    rows = []
    for most in (4e8, 4.2e6):
        speed = {"bytes_per_second": 4e6, "count": 9, "bytes_per_second_at_most": most}
        table = pair_rows([pair(speed=speed)])
        rows.append(dict(zip(table.headers, table.rows[0], strict=True))["BYTES/S"])
    assert rows == ["≥4 MB/s", "4 MB/s"]
