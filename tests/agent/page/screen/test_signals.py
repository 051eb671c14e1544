"""Columns that the page plots: rates, shares and quantiles, with null for what is not known."""

from __future__ import annotations

import json

import pytest
from penstock.agent.batch import GATES
from penstock.agent.metrics import KEPT_SLOTS, SLOT_NANO
from penstock.agent.page.screen import signals_message
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, encode
from penstock.proto.v1 import admin_pb2 as admin

_START = 1_750_000_000 * 10**9


def _slot(place: int, **fields: object) -> admin.SignalSlot:
    return admin.SignalSlot(start_unix_nano=_START + place * SLOT_NANO, engines=1, **fields)  # type: ignore[arg-type]


def _answer(*slots: admin.SignalSlot) -> admin.Signals:
    return admin.Signals(slot_nano=SLOT_NANO, engines=1, slots=slots)


def test_a_slot_is_rates_shares_and_quantiles() -> None:
    """Counts become per second, sums means; a slot between two that is not there is null."""
    busy = _slot(
        2,
        requests=10,
        failed=1,
        recomputed=2,
        first_tokens=4,
        gates={"queue_nano": 2 * 10**9, "own_prefill_nano": 6 * 10**9},
        times={45: 4},
        loads_in=5,
        bytes_in=10**9,
        queues=1,
        running=3,
        waiting=0,
        held_blocks=25,
        total_blocks=100,
    )
    said = signals_message(_answer(_slot(0), busy), "decode/0")

    assert (said["engine"], said["from"], said["step"], said["engines"]) == (
        "decode/0",
        _START // 10**6,
        5000,
        1,
    )
    assert (said["known"], said["requests"]) == ([1, None, 1], [0, None, 2])
    assert (said["failed"], said["recomputed"]) == ([None, None, 0.1], [None, None, 0.2])
    assert {name: column[2] for name, column in said["gates"].items() if column[2]} == {
        "queue": 0.5,
        "own_prefill": 1.5,
    }
    assert said["ttftP50"][:2] == [None, None]
    assert said["ttftP50"][2] == pytest.approx(1.0, rel=0.26)
    assert (said["loadsIn"], said["bytesIn"], said["bytesOut"]) == (
        [0, None, 1],
        [0, None, 200_000_000],
        [0, None, 0],
    )
    assert (said["running"], said["waiting"], said["held"]) == (
        [None, None, 3],
        [None, None, 0],
        [None, None, 0.25],
    )


def test_nothing_is_no_slot() -> None:
    """An agent that has just begun."""
    said = signals_message(admin.Signals(slot_nano=SLOT_NANO))
    assert said["requests"] == []
    assert said["gates"] == {gate: [] for gate in GATES}


def test_a_message_is_bounded() -> None:
    """Also of an agent that tells of slots a year apart, and of numbers as large as they can be."""
    most = (1 << 64) - 1
    full = dict.fromkeys(
        (
            "requests",
            "failed",
            "recomputed",
            "first_tokens",
            "loads_in",
            "bytes_in",
            "loads_out",
            "bytes_out",
        ),
        most,
    )
    slots = [
        _slot(place, **full, times={30: most, 76: most}, gates={f"{gate}_nano": most for gate in GATES})
        for place in range(KEPT_SLOTS)
    ]
    assert len(encode(signals_message(_answer(*slots)))) <= MAX_MESSAGE_BYTES
    apart = signals_message(_answer(_slot(0), _slot(10_000_000)))
    assert len(apart["requests"]) == KEPT_SLOTS
    assert apart["requests"][-1] == 0
    json.loads(encode(apart))
