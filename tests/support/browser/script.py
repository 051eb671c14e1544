"""What a scripted server says: the messages of the contract that the tests in Node have, moved to now, and made as many."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.browser.scripted_server import Message

_STREAM = Path(__file__).parents[2] / "agent" / "page" / "js" / "fixtures" / "stream.json"
_THEN = 1_800_000_900_000
_YEAR_2000 = 946_684_800_000
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
    names = (("hello", ""), ("history", ""), ("log", "1044"), ("screen", ""), ("pulse", ""))
    return [(name, messages[name], position) for name, position in names]


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
