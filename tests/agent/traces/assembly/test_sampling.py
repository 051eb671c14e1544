"""Which traces are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from penstock.agent.traces.assembly.sampling import Sampler, SamplingDecision, in_ratio, sample_trace
from penstock.agent.traces.spans.ids import TraceContext

LOW = "0" * 32
HIGH = "f" * 32
DEFAULT = Sampler()
HALF = DEFAULT.with_policy(0.5)


def caller(*, sampled: bool) -> TraceContext:
    """Build a caller's context."""
    return TraceContext(LOW, "1" * 16, sampled)


@pytest.mark.parametrize(
    ("trace_id", "context", "sampler", "notable", "expected"),
    [
        (LOW, None, DEFAULT, False, SamplingDecision(keep=True)),
        (HIGH, None, DEFAULT, False, SamplingDecision(keep=True)),
        (LOW, None, DEFAULT.with_policy(0.0), False, SamplingDecision(keep=False)),
        (HIGH, None, HALF, False, SamplingDecision(keep=False)),
        (HIGH, None, HALF, True, SamplingDecision(keep=True, forced=True)),
        (LOW, None, HALF, True, SamplingDecision(keep=True)),
        (LOW, caller(sampled=True), HALF, False, SamplingDecision(keep=True)),
        (HIGH, caller(sampled=True), HALF, False, SamplingDecision(keep=False)),
        (LOW, caller(sampled=False), DEFAULT, False, SamplingDecision(keep=False)),
        (LOW, caller(sampled=False), DEFAULT, True, SamplingDecision(keep=True, forced=True)),
    ],
)
def test_sample_trace(trace_id, context, sampler, notable, expected):
    """Failed traces are always kept; the caller's decision or the ratio drops successful ones."""
    assert sample_trace(trace_id, context, sampler, notable=notable) == expected


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1))
def test_the_ratio_is_opentelemetrys(number, ratio):
    """A router that samples by the same ratio keeps the same traces."""
    theirs = TraceIdRatioBased(ratio).should_sample(None, number, "span").decision
    assert in_ratio(f"{number:032x}", ratio) == (theirs is Decision.RECORD_AND_SAMPLE)


# The shares of traces without a caller's decision, with "sampled" and with "not sampled", of OpenTelemetry's samplers;
# and the same under a policy's ratio of 0.25.
@pytest.mark.parametrize(
    ("name", "shares", "by_policy"),
    [
        ("always_on", (1.0, 1.0, 1.0), (0.25, 0.25, 0.25)),
        ("parentbased_always_on", (1.0, 1.0, 0.0), (0.25, 0.25, 0.0)),
        ("traceidratio", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ("parentbased_traceidratio", (0.5, 1.0, 0.0), (0.25, 0.25, 0.0)),
    ],
)
def test_samplers(name, shares, by_policy):
    """Each sampler of OpenTelemetry keeps what it says; a policy's ratio replaces its ratio, not its heed of the caller."""
    sampler = Sampler.named(name, 1.0 if name.endswith("always_on") else 0.5)
    assert _shares(sampler) == shares
    assert _shares(sampler.with_policy(0.25)) == by_policy
    assert sampler.with_policy(None) is sampler


def _shares(sampler):
    """Return the shares of 64 trace ids that are evenly spread."""
    trace_ids = [f"{number << 58:032x}" for number in range(64)]
    contexts = (None, caller(sampled=True), caller(sampled=False))
    return tuple(
        sum(sampler.wants(trace_id, context) for trace_id in trace_ids) / len(trace_ids)
        for context in contexts
    )


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1), st.booleans())
def test_what_failed_is_kept_by_every_sampler(number, ratio, parent_based):
    """No sampler drops a notable trace, whatever the caller decided; the trace says so where it would have."""
    sampler = Sampler(ratio, ratio, parent_based)
    for context in (None, caller(sampled=True), caller(sampled=False)):
        trace_id = f"{number:032x}"
        decision = sample_trace(trace_id, context, sampler, notable=True)
        assert decision == SamplingDecision(keep=True, forced=not sampler.wants(trace_id, context))
