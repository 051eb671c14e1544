"""The minutes of ``agentctl signals``."""

from __future__ import annotations

from penstock.agent.metrics import SLOT_NANO
from penstock.agent.views.signals import signal_rows
from penstock.proto.v1 import admin_pb2 as admin

_MINUTE = 1_749_999_960 * 10**9
_NOW = _MINUTE / 1e9 + 120


def _slot(place: int, **fields: object) -> admin.SignalSlot:
    return admin.SignalSlot(start_unix_nano=_MINUTE + place * SLOT_NANO, engines=1, **fields)  # type: ignore[arg-type]


def test_a_minute_is_as_long_as_what_is_known_of_it() -> None:
    """Two slots of the first minute are known; what a queue has is of the newest that tells."""
    busy = {
        "requests": 20,
        "failed": 1,
        "first_tokens": 2,
        "gates": {"queue_nano": 10**9, "transfer_nano": 4 * 10**9},
    }
    answer = admin.Signals(
        slot_nano=SLOT_NANO,
        slots=[
            _slot(0, **busy, bytes_in=10**10, queues=1, running=9, waiting=1, held_blocks=1, total_blocks=4),
            _slot(3, queues=1, running=2, total_blocks=4),
            _slot(11),
            _slot(12),
        ],
    )
    found = signal_rows(answer, _NOW)
    first, second = (dict(zip(found.headers, row, strict=True)) for row in found.rows)

    assert (first["BEGAN"], first["REQ/S"], first["LONGEST-GATE"]) == ("2m ago", "1.33", "transfer 2.0s")
    assert (first["RUNNING"], first["WAITING"], first["IN"], first["OUT"]) == ("2", "0", "667 MB/s", "0 B/s")
    assert (first["FAILED"], first["RECOMPUTED"], first["HELD"]) == ("5.0%", "0.0%", "0.0%")
    assert (second["BEGAN"], second["REQ/S"], second["TTFT-P50"], second["RUNNING"]) == (
        "60s ago",
        "0",
        "-",
        "-",
    )
    assert second["FAILED"] == "-"


def test_bytes_that_nobody_tells_are_not_0() -> None:
    """Transfers of a connector that knows no sizes."""
    found = signal_rows(admin.Signals(slot_nano=SLOT_NANO, slots=[_slot(0, loads_in=5)]), _NOW)
    (row,) = (dict(zip(found.headers, each, strict=True)) for each in found.rows)
    assert (row["IN"], row["OUT"], row["LOADS-IN/S"]) == ("-", "0 B/s", "1")


def test_nothing_known_is_no_row() -> None:
    """An agent that has just begun."""
    assert not signal_rows(admin.Signals(), _NOW).rows
