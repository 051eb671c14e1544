"""Which traces are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from penstock.agent.traces.assembly.sampling import SamplingDecision, in_ratio, sample_trace
from penstock.agent.traces.spans.ids import TraceContext

LOW = "0" * 32
HIGH = "f" * 32


def caller(*, sampled: bool) -> TraceContext:
    """Build a caller's context."""
    return TraceContext(LOW, "1" * 16, sampled)


@pytest.mark.parametrize(
    ("trace_id", "context", "ratio", "notable", "expected"),
    [
        (LOW, None, 1.0, False, SamplingDecision(keep=True)),
        (HIGH, None, 1.0, False, SamplingDecision(keep=True)),
        (LOW, None, 0.0, False, SamplingDecision(keep=False)),
        (HIGH, None, 0.5, False, SamplingDecision(keep=False)),
        (HIGH, None, 0.5, True, SamplingDecision(keep=True, forced=True)),
        (LOW, None, 0.5, True, SamplingDecision(keep=True)),
        (LOW, caller(sampled=True), 0.5, False, SamplingDecision(keep=True)),
        (HIGH, caller(sampled=True), 0.5, False, SamplingDecision(keep=False)),
        (LOW, caller(sampled=False), 1.0, False, SamplingDecision(keep=False)),
        (LOW, caller(sampled=False), 1.0, True, SamplingDecision(keep=True, forced=True)),
    ],
)
def test_sample_trace(trace_id, context, ratio, notable, expected):
    """Failed traces are always kept; the caller's decision or the ratio drops successful ones."""
    assert sample_trace(trace_id, context, ratio, notable=notable) == expected


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1))
def test_the_ratio_is_opentelemetrys(number, ratio):
    """A router that samples by the same ratio keeps the same traces."""
    theirs = TraceIdRatioBased(ratio).should_sample(None, number, "span").decision
    assert in_ratio(f"{number:032x}", ratio) == (theirs is Decision.RECORD_AND_SAMPLE)
