"""Segments of a request: the export and a query give the same."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.query import trace
from penstock.agent.traces.spans import semconv
from penstock.agent.traces.spans.sdk_spans import service_name
from penstock.instrumentation.telemetry.batcher import ROUTINE_DELAY
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import TIME, deferral_start, transfer_failure
from tests.support.agent.memory_journal import reader_of
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    PREFILL,
    PREFILL_CORE,
    SECOND,
    SOURCES,
    Log,
    closed,
    closed_decode,
    decode_story,
    failed_story,
    lost,
    prefill_story,
    probe,
    sample,
)
from tests.support.examples import examples

LIMITS = AssemblyLimits()
GRACE = LIMITS.grace_nano
OTHER = "other-eeeeeeee"


def exported(log):
    """Return the spans that the backend gets from a log, in the form of an answer."""
    assembler = Assembler(SOURCES.get)
    finished = [item for logged in log.batches for item in assembler.apply(logged)]
    finished += assembler.advance(log.now + 10 * GRACE)
    return [trace._span(span, service_name(span.source)) for item in finished for span in item.spans]


def shown(log, *request_ids):
    """Return the spans in the traces of requests, each once."""
    with reader_of(log, SOURCES.values()) as reader:
        spans = [span for name in request_ids for span in trace.get_trace(reader, name).spans]
    return list({span.SerializeToString(deterministic=True): span for span in spans}.values())


def texts(spans):
    """Return the content of spans, sorted."""
    return sorted(map(str, spans))


EXPIRED = transfer_failure(
    PREFILL,
    time_ns=TIME + 790 * MS,
    mode=common_pb2.FAILURE_MODE_EXPIRED,
    direction=common_pb2.DIRECTION_SEND,
)
ENTRIES = [
    *prefill_story(),
    *failed_story(),
    (PREFILL_CORE, EXPIRED),
    (PREFILL_CORE, closed(OTHER)),
    (DECODE_WORKER, sample(DECODE, rank=1)),
    (DECODE_WORKER, sample(DECODE, end_time_unix_nano=TIME + 90 * MS)),
    (DECODE_CORE, probe(DECODE)),
    (DECODE_CORE, probe(DECODE)),
    # An engine that was only slow: it comes back and ends its request. And an id that a client uses twice.
    (DECODE_CORE, lost(DECODE_CORE)),
    (DECODE_CORE, closed_decode(time_ns=TIME + 900 * MS)),
]


@st.composite
def logs(draw):
    """Draw a log of batches in any order, with one or more entries and any gaps between them."""
    log = Log()
    for teller, entries in groupby(draw(st.permutations(ENTRIES)), key=itemgetter(0)):
        after = draw(st.sampled_from((MS, GRACE // 2, GRACE - MS, GRACE, 2 * GRACE)))
        log.add(teller, *(entry for _, entry in entries), after=after)
    return log


@given(logs())
@settings(max_examples=examples(100), deadline=None)
def test_a_trace_shows_the_spans_that_the_backend_gets(log):
    """With entries late by any time both have the same spans, with unique ids."""
    sent = exported(log)
    assert texts(shown(log, PREFILL, DECODE, OTHER)) == texts(sent)
    assert len({span.span_id for span in sent}) == len(sent)


def ids_of(spans, name):
    """Return the ids of the spans of a name."""
    return [span.span_id for span in spans if span.name == name]


def test_a_worker_that_was_slow():
    """A transfer after the grace period has its own span, with one id in agentctl and in the backend."""
    log = Log()
    *entries, (worker, transfer), end, closing = decode_story()
    log.tell([*entries, end, closing])
    log.add(worker, transfer, after=GRACE + SECOND)
    sent = exported(log)
    assert texts(shown(log, DECODE)) == texts(sent)
    request = next(span for span in sent if span.name == semconv.REQUEST)
    loads = [span for span in sent if span.name == semconv.KV_LOAD]
    assert [load.parent_span_id for load in loads] == [request.span_id] * 2
    assert loads[0].span_id != loads[1].span_id


def test_a_failure_that_a_slow_worker_reports():
    """All that a worker says of a failed load comes after the grace period: the ids are the backend's."""
    log = Log()
    story = failed_story()
    log.tell(each for each in story if each[0] is not DECODE_WORKER)
    log.now += GRACE
    log.tell(each for each in story if each[0] is DECODE_WORKER)
    sent = exported(log)
    assert texts(shown(log, DECODE)) == texts(sent)
    assert len(ids_of(sent, semconv.KV_LOAD)) == 1


@pytest.mark.parametrize("story", [prefill_story, decode_story, failed_story])
def test_a_request_within_its_grace(story):
    """Within the grace period agentctl shows the spans that the backend gets after it."""
    log = Log()
    log.tell(story())
    assert texts(shown(log, story()[-1][1].request_id)) == texts(exported(log))


def test_a_request_that_is_under_way():
    """The span of an unfinished request keeps its id when it finishes."""
    log = Log()
    log.tell(decode_story()[:-1])
    early = shown(log, DECODE)
    assert exported(log)[1:] == []
    log.tell(decode_story()[-1:])
    sent = exported(log)
    assert {span.span_id for span in early} == {span.span_id for span in sent}


def test_a_lost_engine_that_comes_back():
    """The request has two segments: one from the loss, one from its end."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 5 * MS, remote_request_id=PREFILL))
    log.add(DECODE_CORE, lost(DECODE_CORE))
    log.tell(decode_story()[1:], after=GRACE)
    sent = exported(log)
    assert texts(shown(log, DECODE)) == texts(sent)
    assert len(set(ids_of(sent, semconv.REQUEST))) == len(set(ids_of(sent, semconv.DEFERRAL))) == 2


def test_an_engine_that_says_goodbye():
    """A goodbye finishes its engine's requests only."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 5 * MS, remote_request_id=PREFILL))
    log.add(PREFILL_CORE, deferral_start(OTHER, time_ns=TIME))
    log.add(DECODE_CORE, goodbye={"reason": "exit"})
    sent = exported(log)
    assert len(sent) == 2
    assert texts(shown(log, DECODE)) == texts(sent)


def test_a_request_that_was_given_up():
    """A request given up at the age limit, in the log's time, gets a segment for its later end."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 5 * MS, remote_request_id=PREFILL))
    log.add(PREFILL_CORE, closed(OTHER), after=LIMITS.max_age_nano)
    assert texts(shown(log, DECODE, OTHER)) == texts(exported(log))
    log.tell(decode_story()[1:], after=GRACE)
    sent = exported(log)
    assert texts(shown(log, DECODE, OTHER)) == texts(sent)
    assert len(set(ids_of(sent, semconv.REQUEST))) == 3


def test_the_grace_covers_a_calm_engine():
    """The grace period is at least twice the longest interval between an engine's batches."""
    assert GRACE >= 2 * ROUTINE_DELAY * SECOND
