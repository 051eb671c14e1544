"""Buckets of durations, the same for all that counts some, and their quantiles. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_NANO, _PER_OCTAVE, _OCTAVES = 32_000, 3, 25
BOUNDS: Final = tuple(
    round(_FIRST_NANO * 2 ** (step / _PER_OCTAVE)) for step in range(_OCTAVES * _PER_OCTAVE + 1)
)
"""Upper bounds of the buckets, nanoseconds: 32 µs to 18 minutes, each 26 % above the one below."""
BUCKETS: Final = len(BOUNDS) + 1


def quantile(counts: Sequence[int], ratio: float) -> float:
    """Return a quantile in seconds, between the bounds of its bucket; *counts* are of `BUCKETS`, not all 0."""
    rank = ratio * sum(counts)
    below = 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low = BOUNDS[bucket - 1] if bucket else 0
            high = BOUNDS[min(bucket, len(BOUNDS) - 1)]
            return (low + (high - low) * max(0.0, rank - below) / count) / NANOS
        below += count
    return BOUNDS[-1] / NANOS
