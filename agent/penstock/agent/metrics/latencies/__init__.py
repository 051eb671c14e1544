"""How long transfers take and how fast they are and what they move, by peer and by window of time."""

from __future__ import annotations

from penstock.agent.metrics.latencies.peers import PeerLatencies, PeerWindows
from penstock.agent.metrics.latencies.signals import (
    KEPT_SLOTS,
    SLOT_NANO,
    QueueSample,
    Signals,
    SignalSlot,
)
from penstock.agent.metrics.latencies.speeds import (
    SIZE_CLASSES,
    PairKey,
    PairSpeeds,
    Speed,
    at_best,
    is_slow,
    with_siblings,
)
from penstock.agent.metrics.latencies.time_slots import DurationWindow, DurationWindows
from penstock.agent.metrics.latencies.traffic import WAYS, TrafficSum, Way

__all__ = [
    "KEPT_SLOTS",
    "SIZE_CLASSES",
    "SLOT_NANO",
    "WAYS",
    "DurationWindow",
    "DurationWindows",
    "PairKey",
    "PairSpeeds",
    "PeerLatencies",
    "PeerWindows",
    "QueueSample",
    "SignalSlot",
    "Signals",
    "Speed",
    "TrafficSum",
    "Way",
    "at_best",
    "is_slow",
    "with_siblings",
]
