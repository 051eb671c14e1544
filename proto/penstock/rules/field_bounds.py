"""The bounds of the fields of a policy, by path below ``spec``: the agent's manifest and the engine's decoding use the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Bounds(NamedTuple):
    """The least and the most value of a field, both included; durations in seconds."""

    least: float
    most: float


TOKEN_BOUNDS: Final = Bounds(0, 1_000_000_000)
ITEM_BOUNDS: Final = Bounds(0, 1_000_000)
FAILURE_BOUNDS: Final = Bounds(1, 1_000)
PERCENT_BOUNDS: Final = Bounds(0, 100)
RATIO_BOUNDS: Final = Bounds(0, 1)
WAIT_BOUNDS: Final = Bounds(0.001, 3_600)
"""Of what a request or a log line waits for: no request waits longer than an hour."""
QUARANTINE_TIME_BOUNDS: Final = Bounds(1, 86_400)
"""Of what is counted and kept of a peer: up to a day."""
REFLEX_FACTOR_BOUNDS: Final = Bounds(1.1, 100)
"""How much dearer waiting is than computing, before a reflex acts: a tenth at least, or it would act on noise."""
REFLEX_RATE_BOUNDS: Final = Bounds(1, 6_000)

FIELD_BOUNDS: Final[Mapping[str, Bounds]] = {
    "kvLoadFailure.maxRecomputeTokens": TOKEN_BOUNDS,
    "kvLoadFailure.recomputeBudget.tokensPerSecond": TOKEN_BOUNDS,
    "ecLoadFailure.maxRecomputeItems": ITEM_BOUNDS,
    "deferral.maxStartWait": WAIT_BOUNDS,
    "deferral.maxTransferWait": WAIT_BOUNDS,
    "peerQuarantine.failures": FAILURE_BOUNDS,
    "peerQuarantine.window": QUARANTINE_TIME_BOUNDS,
    "peerQuarantine.duration": QUARANTINE_TIME_BOUNDS,
    "peerQuarantine.maxPeersPercent": PERCENT_BOUNDS,
    "telemetry.traceSampleRatio": RATIO_BOUNDS,
    "telemetry.failureLogInterval": WAIT_BOUNDS,
    "integrity.sampleRatio": RATIO_BOUNDS,
    "reflexes.perMinute": REFLEX_RATE_BOUNDS,
    "reflexes.startWait.factor": REFLEX_FACTOR_BOUNDS,
    "reflexes.startWait.minWait": WAIT_BOUNDS,
    "reflexes.slowPeer.factor": REFLEX_FACTOR_BOUNDS,
    "reflexes.recomputeStorm.queueWait": WAIT_BOUNDS,
}
"""Each field that has a number or a duration; the others are words."""
