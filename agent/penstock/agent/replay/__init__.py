"""Replays recorded loads against another policy, by the rules that the engine decides by. Pure."""

from __future__ import annotations

from penstock.agent.replay.counts import Counts, Note, PeerTimes, Replayed
from penstock.agent.replay.recorded import KINDS, RecordedLoads, Recording
from penstock.agent.replay.replay import OwnOutcomes, replay

__all__ = [
    "KINDS",
    "Counts",
    "Note",
    "OwnOutcomes",
    "PeerTimes",
    "RecordedLoads",
    "Recording",
    "Replayed",
    "replay",
]
