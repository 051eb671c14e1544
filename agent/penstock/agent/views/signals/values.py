"""Rates, shares and quantiles of what engines did in some seconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.agent.batch import GATES
from penstock.agent.durations import BUCKETS, quantile
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1 import admin_pb2 as admin


@dataclass(frozen=True, slots=True)
class SlotValues:
    """What a slot says; None for what is not known, and for a share or a time of no requests.

    Attributes:
        requests: that ended, per second.
        ttft_p50: time to first token, seconds.
        ttft_p99: likewise.
        gates: mean seconds at each of ``GATES``; their sum is the mean time to first token.
        running: requests.
        waiting: requests.
        loads_in: transfers per second.
        loads_out: transfers per second.
        bytes_in: bytes per second; None also where the connector tells no sizes.
        bytes_out: likewise.
        failed: share of the requests that ended.
        recomputed: likewise.
        held: share of the KV blocks.

    """

    requests: float
    ttft_p50: float | None
    ttft_p99: float | None
    gates: Mapping[str, float | None]
    running: float | None
    waiting: float | None
    loads_in: float
    loads_out: float
    bytes_in: float | None
    bytes_out: float | None
    failed: float | None
    recomputed: float | None
    held: float | None


def slot_values(slot: admin.SignalSlot, seconds: float) -> SlotValues:
    """Return the values of a slot that is *seconds* long."""
    return SlotValues(
        requests=slot.requests / seconds,
        ttft_p50=_quantile(slot, 0.5),
        ttft_p99=_quantile(slot, 0.99),
        gates={
            gate: _ratio(getattr(slot.gates, f"{gate}_nano") / NANOS, slot.first_tokens) for gate in GATES
        },
        running=slot.running if slot.queues else None,
        waiting=slot.waiting if slot.queues else None,
        loads_in=slot.loads_in / seconds,
        loads_out=slot.loads_out / seconds,
        bytes_in=_bytes(slot.loads_in, slot.bytes_in, seconds),
        bytes_out=_bytes(slot.loads_out, slot.bytes_out, seconds),
        failed=_ratio(slot.failed, slot.requests),
        recomputed=_ratio(slot.recomputed, slot.requests),
        held=_ratio(slot.held_blocks, slot.total_blocks),
    )


def _bytes(transfers: int, size: int, seconds: float) -> float | None:
    """Return bytes per second; None where transfers ended whose size their connector does not tell."""
    return None if transfers and not size else size / seconds


def _quantile(slot: admin.SignalSlot, ratio: float) -> float | None:
    counts = [slot.times.get(bucket, 0) for bucket in range(BUCKETS)]
    return quantile(counts, ratio) if any(counts) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
