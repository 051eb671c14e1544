"""The way of an entry: emit, queue, batch, outbox, stream."""

from __future__ import annotations

from penstock.instrumentation.telemetry.emitter import QUEUE_CAPACITY, Emitter
from penstock.instrumentation.telemetry.snapshots import Snapshots

__all__ = [
    "QUEUE_CAPACITY",
    "Emitter",
    "Snapshots",
]
