"""Sampling: a pure function of the trace id and the caller's decision, the same in every pod."""

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


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which share of the traces is kept, by what the caller decided.

    Attributes:
        ratio: of the traces of which no caller decided, from 0 to 1.
        sampled_ratio: of the traces that the caller samples.
        parent_based: a trace that the caller does not sample is dropped; otherwise *ratio* holds for it.

    """

    ratio: float = 1.0
    sampled_ratio: float = 1.0
    parent_based: bool = True

    @classmethod
    def named(cls, name: str, ratio: float) -> Sampler:
        """Return OpenTelemetry's sampler *name*: one with a ratio, or one that is always on."""
        parent_based = name.startswith("parentbased_")
        return cls(ratio, 1.0 if parent_based else ratio, parent_based)

    def with_policy(self, ratio: float | None) -> Sampler:
        """Return the sampler under a policy's ``traceSampleRatio``, which holds where the caller samples, too."""
        return self if ratio is None else Sampler(ratio, ratio, self.parent_based)

    def wants(self, trace_id: str, caller: TraceContext | None) -> bool:
        """Return whether a trace is kept if nothing notable happened in it."""
        if caller is None:
            return in_ratio(trace_id, self.ratio)
        if caller.sampled:
            return in_ratio(trace_id, self.sampled_ratio)
        return not self.parent_based and in_ratio(trace_id, self.ratio)


def in_ratio(trace_id: str, ratio: float) -> bool:
    """Return whether a trace is in the share *ratio* (0 to 1); OpenTelemetry's TraceIdRatioBased rule."""
    return (int(trace_id, 16) & _LOW_64_BITS) < round(ratio * (_LOW_64_BITS + 1))


def sample_trace(
    trace_id: str, caller: TraceContext | None, sampler: Sampler, *, notable: bool
) -> SamplingDecision:
    """Decide about one trace.

    Args:
        trace_id: 32 hex digits.
        caller: the caller's context.
        sampler: of the engine.
        notable: failed, recomputed or long deferred: always kept.

    """
    wanted = sampler.wants(trace_id, caller)
    return SamplingDecision(keep=wanted or notable, forced=notable and not wanted)


def sample_request(
    facts: RequestFacts, identity: RequestIdentity, sampler: Sampler, long_deferral_nano: int
) -> SamplingDecision:
    """Decide about the trace of a request."""
    notable = facts.notable(long_deferral_nano)
    return sample_trace(identity.trace_id, identity.caller, sampler, notable=notable)
