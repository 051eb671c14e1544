"""A received batch, read once: columns for the hot path, rows for single entries. Pure."""

from __future__ import annotations

from penstock.agent.batch.columns import FEW, BatchColumns, EventGroup, SampleColumns, Samples
from penstock.agent.batch.rows import (
    ProbeSample,
    TransferSample,
    balancedness,
    probe_rows,
    transfer_rows,
    typed_events,
)
from penstock.agent.batch.transposed_events import CLEAN_UP, GATES, GateTimes, gate_times, is_clean_up

__all__ = [
    "CLEAN_UP",
    "FEW",
    "GATES",
    "BatchColumns",
    "EventGroup",
    "GateTimes",
    "ProbeSample",
    "SampleColumns",
    "Samples",
    "TransferSample",
    "balancedness",
    "gate_times",
    "is_clean_up",
    "probe_rows",
    "transfer_rows",
    "typed_events",
]
