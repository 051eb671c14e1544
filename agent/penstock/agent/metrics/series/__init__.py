"""The series that entries of the log update: which they are, and their exact state under a cap."""

from __future__ import annotations

from penstock.agent.metrics.series.bulk_updates import closed_bulks, ended_bulks, probe_bulks, transfer_bulks
from penstock.agent.metrics.series.engine import (
    CAP,
    IDLE_NANO,
    MAX_LABEL,
    TOTAL,
    EngineSeries,
    Row,
    Series,
    SeriesBudget,
    sorted_series,
)
from penstock.agent.metrics.series.updates import (
    COUNTED,
    UNKNOWN,
    Update,
    boolean,
    event_updates,
    peer_of,
    transfer_updates,
)

__all__ = [
    "CAP",
    "COUNTED",
    "IDLE_NANO",
    "MAX_LABEL",
    "TOTAL",
    "UNKNOWN",
    "EngineSeries",
    "Row",
    "Series",
    "SeriesBudget",
    "Update",
    "boolean",
    "closed_bulks",
    "ended_bulks",
    "event_updates",
    "peer_of",
    "probe_bulks",
    "sorted_series",
    "transfer_bulks",
    "transfer_updates",
]
