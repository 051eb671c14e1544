"""What a scripted server says: the messages of the contract that the tests in Node have, moved to now, and made as many."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.browser.scripted_server import Message

_STREAM = Path(__file__).parents[2] / "agent" / "page" / "js" / "fixtures" / "stream.json"
_THEN = 1_800_000_900_000
_YEAR_2000 = 946_684_800_000
_STEP = 5000
PEER = "10.0.0.12:5600"
ENGINE = "serving/decode-0/0"


def now() -> int:
    """Return the time as the page's server says it."""
    return int(time.time() * 1000)


def stream(moment: int | None = None) -> dict[str, Any]:
    """Return the messages by name, as if the newest were of a moment."""
    moved: dict[str, Any] = _moved(json.loads(_STREAM.read_text()), (moment or now()) - _THEN)
    return moved


def opening(messages: dict[str, Any]) -> list[Message]:
    """Return what a stream begins with."""
    names = (
        ("hello", ""),
        ("history", ""),
        ("log", "1044"),
        ("screen", ""),
        ("signals", ""),
        ("map", ""),
        ("pulse", ""),
    )
    return [(name, messages[name], position) for name, position in names]


def signals(moment: int | None = None, slots: int = 180, **changes: Any) -> dict[str, Any]:
    """Return the signals of as many slots as the window has, the newest of a moment, as waves that differ."""
    end = (moment or now()) // _STEP * _STEP

    def wave(height: float, turns: float, ground: float = 0.0) -> list[float]:
        return [round(ground + height * (1 + math.sin(turns * slot / slots)) / 2, 4) for slot in range(slots)]

    gates = {
        "queue": wave(0.08, 9, 0.01),
        "handshake_queue": wave(0.03, 40),
        "peer": wave(0.05, 21),
        "transfer": wave(0.2, 14, 0.05),
        "recompute": wave(0.1, 5),
        "own_prefill": [0.0] * slots,
        "encoder": [None] * slots,
    }
    return {
        "engine": "",
        "from": end - (slots - 1) * _STEP,
        "step": _STEP,
        "whole": True,
        "engines": 3,
        "leftOut": 0,
        "known": [3] * slots,
        "requests": wave(8, 17, 4),
        "ttftP50": wave(0.2, 14, 0.1),
        "ttftP99": wave(0.9, 30, 0.6),
        "gates": gates,
        "running": [round(value) for value in wave(30, 12, 20)],
        "waiting": [round(value) for value in wave(14, 19)],
        "loadsIn": wave(9, 16, 2),
        "loadsOut": wave(5, 26, 1),
        "bytesIn": wave(2.4e9, 16, 3e8),
        "bytesOut": wave(1.1e9, 26, 1e8),
        "failed": wave(0.2, 7),
        "recomputed": wave(0.12, 7),
        "held": wave(0.3, 6, 0.05),
        **changes,
    }


def fleet_map(
    prefills: int = 2, decodes: int = 4, moment: int | None = None, **changes: Any
) -> dict[str, Any]:
    """Return a map in which each decode reads from each prefill, the first of which is in trouble."""
    columns = [
        {"title": f"{role}s", "boxes": [_box(role, number) for number in range(count)]}
        for role, count in (("prefill", prefills), ("decode", decodes))
    ]
    edges = [_edge(one, other) for one in range(prefills) for other in range(decodes)]
    headers = ["FROM", "TO", "CHANNEL", "STATE", "SINCE", "GB/S", "FAILED", "SPEED"]
    return {
        "now": moment or now(),
        "columns": columns,
        "headers": headers,
        "edges": edges,
        "sentence": "",
        **changes,
    }


def _box(role: str, number: int) -> dict[str, Any]:
    trouble = role == "prefill" and number == 0
    return {
        "name": f"{role}-{number}/0",
        "notes": ["in trouble"] if trouble else [],
        "kind": "trouble" if trouble else "",
        "engines": [f"{role}-{number}/0"],
        "peers": [f"10.0.{len(role)}.{number}:5600"],
    }


def _edge(prefill: int, decode: int) -> dict[str, Any]:
    bad = prefill == 0
    ends = (f"prefill-{prefill}/0", f"decode-{decode}/0")
    words = ["failing for 2m", "kv 0 B/s"] if bad else ["kv 1.2 GB/s", "usually 9.6 GB/s"]
    state, rest = (
        ("failing", ("2m", "0.000", "100%", "-")) if bad else ("ok", ("-", "1.200", "0%", "9.6 GB/s"))
    )
    return {
        "source": ends[0],
        "target": ends[1],
        "state": "error" if bad else "ok",
        "dashes": "10 4" if bad else "",
        "width": 1 if bad else 4.1,
        "words": words,
        "cells": [*ends, "kv", state, *rest],
        "engine": ends[1],
        "peer": f"10.0.7.{prefill}:5600",
    }


def crowded(messages: dict[str, Any]) -> dict[str, Any]:
    """Return the messages of a fleet in trouble: as many rows of each kind as the server sends."""
    screen, entries = messages["screen"], messages["log"]["entries"]
    engines = [f"serving/decode-{number}/0" for number in range(12)]
    row = screen["peers"]["rows"][0]
    cells = [row["cells"][0] | {"engine": engine} for engine in engines]
    rows = [row | {"peer": f"10.0.{number}.12:5600", "cells": cells} for number in range(30)]
    wait = screen["waits"]["rows"][0]
    field = screen["policy"]["rows"][0]
    cause = screen["verdict"]["causes"][0]
    return messages | {
        "screen": screen
        | {
            "peers": screen["peers"] | {"engines": engines, "rows": rows, "total": 100, "leftOut": 70},
            "waits": screen["waits"]
            | {"rows": [wait | {"request": f"cmpl-{number}"} for number in range(30)], "total": 90},
            "policy": screen["policy"]
            | {"rows": [field | {"field": f"section{number}.name"} for number in range(20)], "total": 45},
            "banners": [screen["banners"][0] | {"sentence": f"banner {number}"} for number in range(8)],
            "verdict": screen["verdict"]
            | {"causes": [cause | {"peer": f"peer-{number}"} for number in range(8)], "leftOut": 12},
        },
        "signals": signals(),
        "map": fleet_map(6, 6),
        "log": {"entries": [entries[1] | {"position": f"{1000 + number}/0"} for number in range(200)]},
    }


def _moved(value: Any, by: int) -> Any:
    if isinstance(value, dict):
        return {name: _moved(one, by) for name, one in value.items()}
    if isinstance(value, list):
        return [_moved(one, by) for one in value]
    return (
        value + by if isinstance(value, int) and not isinstance(value, bool) and value > _YEAR_2000 else value
    )
