"""Which spans the caller's context and the sample ratio keep."""

from __future__ import annotations

import pytest
from penstock.agent.traces.spans import semconv
from penstock.proto.v1 import common_pb2

from tests.support.agent.assembled import only, spans_of
from tests.support.agent.batches import TIME, event
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    NOT_SAMPLED,
    SECOND,
    TRACEPARENT,
    closed,
    closed_decode,
    decode_story,
    failed_story,
    prefill_story,
)


@pytest.mark.parametrize("story", [prefill_story, decode_story])
def test_a_callers_trace_is_taken(story):
    """With a sampled traceparent the trace and the parent are the caller's."""
    request = only(spans_of(story(traceparent=TRACEPARENT, tracestate="vendor=1")), semconv.REQUEST)
    assert request.trace_id == TRACEPARENT[3:35]
    assert (request.parent_span_id, request.remote_parent) == (TRACEPARENT[36:52], True)
    assert request.tracestate == "vendor=1"


def test_not_sampled_drops_good_and_forces_failed_requests():
    """A forced trace is marked, and names no parent, because the caller exports none."""
    good = spans_of(decode_story(traceparent=NOT_SAMPLED))
    failed = spans_of(failed_story(traceparent=NOT_SAMPLED))
    request = only(failed, semconv.REQUEST)
    assert set(good) == {semconv.HANDSHAKE}
    assert request.trace_id == NOT_SAMPLED[3:35]
    assert request.parent_span_id == ""
    assert request.attributes[semconv.SAMPLING] == "forced"


def test_ratio_zero_keeps_what_failed_or_waited_long():
    """The ratio applies to traces without failures and long waits."""
    slow = event(
        "deferral_end",
        DECODE,
        time_ns=TIME + 3 * SECOND,
        reason=common_pb2.DEFERRAL_REASON_REMOTE_KV,
        ending=common_pb2.DEFERRAL_ENDING_READY,
        start_time_unix_nano=TIME,
        observed_reason="deferral.maxStartWait: it took 3 s, 1 s are allowed",
    )
    long = [(DECODE_CORE, slow), (DECODE_CORE, closed_decode(time_ns=TIME + 4 * SECOND))]
    assert spans_of(decode_story(), sample_ratio=0.0) == {}
    assert semconv.REQUEST in spans_of(failed_story(), sample_ratio=0.0)
    waited = only(spans_of(long, sample_ratio=0.0), semconv.DEFERRAL).attributes
    assert (waited[semconv.ENDING], waited[semconv.OBSERVED_REASON][:21]) == (
        "ready",
        "deferral.maxStartWait",
    )


def test_blocks_that_stay_pinned():
    """The request's span has the number of pinned blocks; its trace is kept at any ratio."""
    pin = event("blocks_pinned", DECODE, channel=common_pb2.CHANNEL_KV, blocks=26, since_time_unix_nano=TIME)
    story = [(DECODE_WORKER, pin), (DECODE_CORE, closed(DECODE))]
    attributes = only(spans_of(story, sample_ratio=0.0), semconv.REQUEST).attributes
    assert attributes[semconv.PINNED_BLOCKS] == 26
    assert attributes[semconv.SAMPLING] == "forced"
