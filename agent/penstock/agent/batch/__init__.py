"""A received batch, read once: columns for the hot path, rows for everybody else. Pure."""

from __future__ import annotations

from penstock.agent.batch.balancedness import balancedness
from penstock.agent.batch.columns import BatchColumns, EventGroup, SampleColumns, Samples
from penstock.agent.batch.rows import with_kinds
from penstock.agent.batch.samples import ProbeSample, TransferSample, probe_samples, transfer_samples

__all__ = [
    "BatchColumns",
    "EventGroup",
    "ProbeSample",
    "SampleColumns",
    "Samples",
    "TransferSample",
    "balancedness",
    "probe_samples",
    "transfer_samples",
    "with_kinds",
]
