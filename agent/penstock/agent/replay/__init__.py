"""Replays recorded loads against another policy, by the rules that the engine decides by, and searches the best. Pure."""

from __future__ import annotations

from penstock.agent.replay.counts import Counts, Note, PeerTimes, ReflexCounts, Replayed
from penstock.agent.replay.recommend import (
    MAX_REPLAYS,
    MIN_LOADS,
    Found,
    Seen,
    Trial,
    Value,
    is_better,
    is_harmless,
    search,
    wait_bounds,
)
from penstock.agent.replay.recorded import KINDS, RecordedLoads, Recording
from penstock.agent.replay.reflexes import acting
from penstock.agent.replay.replay import OwnOutcomes, replay

__all__ = [
    "KINDS",
    "MAX_REPLAYS",
    "MIN_LOADS",
    "Counts",
    "Found",
    "Note",
    "OwnOutcomes",
    "PeerTimes",
    "RecordedLoads",
    "Recording",
    "ReflexCounts",
    "Replayed",
    "Seen",
    "Trial",
    "Value",
    "acting",
    "is_better",
    "is_harmless",
    "replay",
    "search",
    "wait_bounds",
]
