"""Sampling: a pure function of the trace id, the same in every pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.agent.traces.spans import RequestFacts, RequestIdentity, TraceContext

_LOW_64_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingDecision:
    """Whether spans are exported, and whether that overrides the ratio or the caller."""

    keep: bool
    forced: bool = False


def in_ratio(trace_id: str, ratio: float) -> bool:
    """Return whether a trace is in the share *ratio* (0 to 1); OpenTelemetry's TraceIdRatioBased rule."""
    return (int(trace_id, 16) & _LOW_64_BITS) < round(ratio * (_LOW_64_BITS + 1))


def sample_trace(
    trace_id: str, caller: TraceContext | None, ratio: float, *, notable: bool
) -> SamplingDecision:
    """Decide about one trace.

    Args:
        trace_id: 32 hex digits.
        caller: the caller's context; its "not sampled" counts, its "sampled" does not override the ratio.
        ratio: ``traceSampleRatio``.
        notable: failed, recomputed or long deferred: always kept.

    """
    wanted = in_ratio(trace_id, ratio) and (caller is None or caller.sampled)
    return SamplingDecision(keep=wanted or notable, forced=notable and not wanted)


def sample_request(
    facts: RequestFacts, identity: RequestIdentity, ratio: float, long_deferral_nano: int
) -> SamplingDecision:
    """Decide about the trace of a request."""
    notable = facts.notable(long_deferral_nano)
    return sample_trace(identity.trace_id, identity.caller, ratio, notable=notable)
