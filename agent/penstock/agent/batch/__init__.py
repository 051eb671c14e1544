"""A received batch, read once: columns for the hot path, rows for single entries. Pure."""

from __future__ import annotations

from penstock.agent.batch.balancedness import balancedness
from penstock.agent.batch.columns import BatchColumns, EventGroup, SampleColumns, Samples
from penstock.agent.batch.rows import ProbeSample, TransferSample, probe_rows, transfer_rows, typed_events

__all__ = [
    "BatchColumns",
    "EventGroup",
    "ProbeSample",
    "SampleColumns",
    "Samples",
    "TransferSample",
    "balancedness",
    "probe_rows",
    "transfer_rows",
    "typed_events",
]
