"""Journal and snapshots -> Prometheus."""

from __future__ import annotations

from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.aggregator import Aggregator, EngineRows
from penstock.agent.metrics.catalogue import Metric
from penstock.agent.metrics.checkpoint import AggregatorCheckpoint, refill_signals
from penstock.agent.metrics.exposition import Family, Sample
from penstock.agent.metrics.gatherer import Exemplars, Gatherer
from penstock.agent.metrics.latencies import (
    KEPT_SLOTS,
    SIZE_CLASSES,
    SLOT_NANO,
    WAYS,
    DurationWindow,
    DurationWindows,
    PairKey,
    PeerWindows,
    QueueSample,
    SignalSlot,
    Speed,
    TrafficSum,
    Way,
)
from penstock.agent.metrics.series import Row

__all__ = [
    "KEPT_SLOTS",
    "SIZE_CLASSES",
    "SLOT_NANO",
    "WAYS",
    "AgentMetrics",
    "Aggregator",
    "AggregatorCheckpoint",
    "DurationWindow",
    "DurationWindows",
    "EngineRows",
    "Exemplars",
    "Family",
    "Gatherer",
    "Metric",
    "PairKey",
    "PeerWindows",
    "QueueSample",
    "Row",
    "Sample",
    "SignalSlot",
    "Speed",
    "TrafficSum",
    "Way",
    "refill_signals",
]
