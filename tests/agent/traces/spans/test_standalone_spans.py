"""Spans that belong to no request: policies, rebalances, probes."""

from __future__ import annotations

from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.model import EventEntry
from penstock.agent.traces.spans.standalone_spans import standalone_spans
from penstock.proto.v1 import common_pb2, events_pb2

from tests.support.agent.assembled import only, spans_of
from tests.support.agent.batches import TIME, event, transfer_failure
from tests.support.agent.stories import (
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    SECOND,
)


def test_a_policy_that_took_effect_and_one_that_was_refused():
    """Each application is a trace of its own; a refusal is an error."""
    applied = event("policy_applied", hash="h2", previous_hash="h1", accepted=True, cause="push")
    refused = event("policy_applied", time_ns=TIME + 1, hash="h3", accepted=False, error="out of bounds")
    found = spans_of([(DECODE_CORE, applied), (DECODE_CORE, refused)])
    good, bad = found[semconv.POLICY_APPLY]
    assert (good.error, bad.error) == (None, "out of bounds")
    assert good.attributes[semconv.POLICY_HASH] == "h2"
    assert good.trace_id != bad.trace_id


def test_a_front_end_out_of_rotation():
    """From when it went out until it was back; what is still out has no span yet."""
    out = event("rotation_changed", time_ns=TIME, out=True)
    back = event("rotation_changed", time_ns=TIME + SECOND, since_time_unix_nano=TIME)
    assert not spans_of([(DECODE_CORE, out)])
    (span,) = spans_of([(DECODE_CORE, out), (DECODE_CORE, back)])[semconv.OUT_OF_ROTATION]
    assert (span.start_unix_nano, span.end_unix_nano, span.error) == (TIME, TIME + SECOND, None)


def test_a_rebalance():
    """Layers add up; the ranks of a process share a trace."""
    layers = [
        {"layer": n, "experts_unchanged": 6, "experts_received_remotely": 2, "bytes": 10} for n in (0, 1)
    ]
    ranks = []
    for rank in (0, 1):
        rebalance = event(
            "eplb_rebalance",
            trigger=events_pb2.EPLB_TRIGGER_INTERVAL,
            result=common_pb2.TRANSFER_RESULT_OK,
            start_time_unix_nano=TIME,
            duration_nano=SECOND,
            pause_nano=5 * MS,
            step=3000,
            layers=layers,
        )
        rebalance.rank = rank
        ranks.append((DECODE_WORKER, rebalance))
    first, second = spans_of(ranks)[semconv.EPLB_REBALANCE]
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id
    assert first.end_unix_nano - first.start_unix_nano == SECOND
    assert first.attributes[semconv.EXPERTS_RECEIVED_REMOTELY] == 4
    assert first.attributes[semconv.PAUSE_SECONDS] == 0.005


def test_two_rebalances_of_one_step():
    """A drained rebalance and the next of the same step are two spans."""
    first, second = (
        event("eplb_rebalance", start_time_unix_nano=TIME + n * MS, duration_nano=MS, step=3000)
        for n in (0, 1)
    )
    spans = spans_of([(DECODE_WORKER, first), (DECODE_WORKER, second)])[semconv.EPLB_REBALANCE]
    assert len({span.span_id for span in spans}) == 2


def test_a_layer_that_failed():
    """One failed rebalance is one failed span of that name; its layer is another."""
    failure = event(
        "transfer_failure",
        channel=common_pb2.CHANNEL_EPLB,
        mode=common_pb2.FAILURE_MODE_TRANSFER,
        peer={"address": "rank:1"},
        item="7",
    )
    rebalance = event("eplb_rebalance", result=common_pb2.TRANSFER_RESULT_ERROR, step=3000)
    found = spans_of([(DECODE_WORKER, failure), (DECODE_WORKER, rebalance)])
    whole, layer = only(found, semconv.EPLB_REBALANCE), only(found, semconv.EPLB_LAYER)
    assert whole.error
    assert layer.error
    assert layer.attributes[semconv.LAYER] == 7


def test_layers_of_a_rebalance():
    """Each layer that received experts is a span below its rank's; an unchanged layer has none."""
    rebalance = event(
        "eplb_rebalance",
        start_time_unix_nano=TIME,
        duration_nano=SECOND,
        step=3000,
        layers=[
            {"layer": 0, "experts_unchanged": 8},
            {
                "layer": 1,
                "experts_received_remotely": 2,
                "bytes": 10,
                "start_time_unix_nano": TIME + MS,
                "duration_nano": MS,
                "recv_expert_ids": [3, 5],
                "from_ranks": [{"rank": 4, "bytes": 10}],
            },
        ],
    )
    found = spans_of([(DECODE_WORKER, rebalance)])
    whole, layer = only(found, semconv.EPLB_REBALANCE), only(found, semconv.EPLB_LAYER)
    assert (layer.trace_id, layer.parent_span_id) == (whole.trace_id, whole.span_id)
    assert (layer.start_unix_nano, layer.end_unix_nano) == (TIME + MS, TIME + 2 * MS)
    assert layer.attributes[semconv.LAYER] == 1
    assert layer.attributes[semconv.EXPERTS] == (3, 5)
    assert layer.attributes[semconv.FROM_RANKS] == (4,)


def test_failures_of_one_moment_are_spans_of_their_own():
    """Failures with equal times, of several peers or items, have different ids."""
    failures = [
        transfer_failure("", mode=common_pb2.FAILURE_MODE_PROBE, peer=peer, item=item)
        for peer, item in (("a:1", ""), ("b:1", ""), ("b:1", "image"))
    ]
    spans = [span for failure in failures for span in standalone_spans(EventEntry(DECODE_CORE, failure))]
    assert len({span.span_id for span in spans}) == len({span.trace_id for span in spans}) == 3
