"""What is said of the encoder behind an address: only what its engine told."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.pairs import EncoderStates
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import snapshot_pb2 as snapshots

SECOND = 1_000_000_000
NOW = 1_000_000 * SECOND
ADDRESS = "10.0.0.9:14579"
WAITING = {
    "running": 1,
    "waiting": [
        {"reason": snapshots.QUEUE_REASON_NEXT_STEP, "count": 1, "oldest_start_time_unix_nano": NOW - SECOND},
        {
            "reason": snapshots.QUEUE_REASON_CAPACITY,
            "count": 2,
            "oldest_start_time_unix_nano": NOW - 30 * SECOND,
        },
    ],
}


def _engine(name: str = "encoder", started: int = NOW - 900 * SECOND, **fields: Any) -> admin.Engine:
    facts = {"ec_address": ADDRESS, "start_time_unix_nano": started}
    values: dict[str, Any] = {
        "key": {"server": name, "engine": "0"},
        "connected": True,
        "facts": facts,
    }
    return admin.Engine(**{**values, **fields})


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([], f"no engine known here announces {ADDRESS}, so what that encoder did is not known"),
        (
            [_engine("a"), _engine("b")],
            f"engines a/0 and b/0 announce {ADDRESS}, so what that encoder did is not known",
        ),
        (
            [_engine()],
            f"{ADDRESS} is engine encoder/0: it is connected; its scheduler's queue is not known",
        ),
        (
            [_engine(queue=WAITING)],
            (
                f"{ADDRESS} is engine encoder/0: 3 requests wait in its scheduler now, the oldest for 30 s, 1 is running; "
                "an item is encoded once its request runs"
            ),
        ),
        (
            [_engine(queue={"running": 2})],
            f"{ADDRESS} is engine encoder/0: no request waits in its scheduler now, 2 are running",
        ),
        (
            [_engine(started=NOW - 5 * SECOND, queue={})],
            (
                f"{ADDRESS} is engine encoder/0: it was started 5 s ago, after it was asked: it has nothing of what was "
                "encoded before; no request waits in its scheduler now, none are running"
            ),
        ),
        (
            [_engine(stalls=[{"kind": "step_stuck", "sentence": "a step takes 40 s"}])],
            f"{ADDRESS} is engine encoder/0: a step takes 40 s",
        ),
        (
            [_engine(connected=False, said_goodbye=True, last_seen={"seconds": NOW // SECOND - 300})],
            f"{ADDRESS} is engine encoder/0: it said goodbye and ended; it was last seen 5 min ago",
        ),
        (
            [_engine(queue=WAITING, last_seen={"seconds": NOW // SECOND - 8})],
            f"{ADDRESS} is engine encoder/0: nothing was heard of it for 8 s, though it is connected",
        ),
        (
            [_engine("old", connected=False), _engine("new", queue={})],
            f"{ADDRESS} is engine new/0: no request waits in its scheduler now, none are running",
        ),
    ],
    ids=["unknown", "two", "no-queue", "queued", "idle", "restarted", "stuck", "ended", "silent", "replaced"],
)
def test_the_sentence(engines: list[admin.Engine], expected: str) -> None:
    """Asked ten seconds ago."""
    assert EncoderStates.of(engines, NOW).sentence(ADDRESS, NOW - 10 * SECOND) == expected


def test_an_engine_that_is_away_is_known_by_its_last_address() -> None:
    """It tells no facts any more; that no one else has the address is no proof that it is there."""
    away = _engine(connected=False, facts=None)
    assert EncoderStates.of([away], NOW).one(ADDRESS) is None
    states = EncoderStates.of([away], NOW, lambda key: ADDRESS if key.server == "encoder" else "")
    assert states.sentence(ADDRESS, 0) == f"{ADDRESS} is engine encoder/0: it is not connected"
    assert not list(states.present(ADDRESS, 0))
