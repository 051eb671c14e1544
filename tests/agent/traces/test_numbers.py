"""Consistency of numbers: for any log parts are within their wholes and each start has one end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.traces.assembly.model import AssemblyLimits
from penstock.agent.traces.spans import semconv
from penstock.agent.views.events import event_words
from penstock.proto.v1 import common_pb2

from tests.faults.extent import RANDOM_LOGS
from tests.support.agent.batches import TIME, deferral_end, deferral_start, event
from tests.support.agent.derived import Told
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    HANDSHAKE,
    MS,
    SECOND,
    SOURCES,
    Log,
    closed_decode,
    decode_story,
    failed_load,
    failed_story,
    handshake,
    lease,
    outcome,
    prefill_story,
    probe,
    sample,
)

GRACE = AssemblyLimits().grace_nano
MOST = (1 << 64) - 1
FAILED, ABORTED = common_pb2.OUTCOME_FAILED, common_pb2.OUTCOME_ABORTED


def told(*stories):
    """Return the checked output of the agent for *stories*."""
    log = Log()
    for story in stories:
        log.tell(story)
    return Told(log.batches, SOURCES).check()


def test_the_usual_stories_add_up():
    """Logs of normal operation give consistent numbers."""
    told(prefill_story(), decode_story())
    told(prefill_story(), failed_story())
    told(failed_story(FAILED, finish_reason="error"))
    told(failed_story(ABORTED, finish_reason="abort"))


@pytest.mark.parametrize("pause", [MS, 10 * GRACE])
def test_a_deferral_ends_once_though_its_engine_came_back(pause):
    """A deferral ended by a loss and by its returning engine has one end."""
    log = Log()
    log.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 100 * MS))
    log.lose(DECODE_CORE, last_seen=TIME + 12 * SECOND)
    end = deferral_end(
        DECODE,
        start_ns=TIME + 100 * MS,
        time_ns=TIME + 15 * SECOND,
        ending=common_pb2.DEFERRAL_ENDING_ABORTED,
    )
    closed = closed_decode(time_ns=TIME + 15 * SECOND + MS, finish_reason="abort")
    log.add(DECODE_CORE, end, closed, after=pause)
    found = Told(log.batches, SOURCES).check()
    (sentence,) = found.sentences
    assert "after 15.0 s, deferred for 14.9 s of that" in sentence
    last = found.named(semconv.REQUEST)[-1]
    assert last.attributes[semconv.DEFERRED_SECONDS] == pytest.approx(14.9)
    assert semconv.ENGINE_LOST not in last.attributes
    assert [
        span.attributes[semconv.ENDING]
        for span in found.named(semconv.DEFERRAL)
        if span.parent_span_id == last.span_id
    ] == ["aborted"]


def test_deferrals_that_overlap_are_one_time():
    """Overlapping deferrals count once in the deferred time."""
    encoder: dict[str, Any] = {
        "reason": common_pb2.DEFERRAL_REASON_ENCODER_CACHE,
        "channel": common_pb2.CHANNEL_EC,
    }
    found = told(
        [
            (DECODE_CORE, deferral_end(DECODE, start_ns=TIME, time_ns=TIME + 400 * MS)),
            (DECODE_CORE, deferral_end(DECODE, start_ns=TIME + 100 * MS, time_ns=TIME + 450 * MS, **encoder)),
            (DECODE_CORE, closed_decode()),
        ]
    )
    (request,) = found.named(semconv.REQUEST)
    assert request.attributes[semconv.DEFERRED_SECONDS] == 0.45


def test_a_load_is_part_of_its_request_though_its_handshake_began_before():
    """A load that joins an earlier handshake begins within its request."""
    joined = TIME + 5 * SECOND
    found = told(
        [
            (DECODE_WORKER, failed_load(start_time_unix_nano=TIME, time_ns=joined + 4 * MS)),
            (DECODE_CORE, outcome(DECODE, FAILED, time_ns=joined + 4 * MS)),
            (
                DECODE_CORE,
                closed_decode(
                    arrival_time_unix_nano=joined, time_ns=joined + 5 * MS, finish_reason="error",
                    scheduled_time_unix_nano=0, first_token_time_unix_nano=0,
                ),
            ),
        ]
    )  # fmt: skip
    (load,) = found.named(semconv.KV_LOAD)
    assert load.start_unix_nano == joined
    (sentence,) = found.sentences
    assert "it was under way for 4 ms; it ended (error) after 5 ms" in sentence


def test_a_load_that_goes_on_after_its_request_says_so():
    """The explanation has the time that a load continued after its aborted request."""
    found = told(
        [
            (DECODE_CORE, closed_decode(time_ns=TIME + 5 * MS, finish_reason="abort")),
            (DECODE_WORKER, failed_load(start_time_unix_nano=TIME, time_ns=TIME + 5 * SECOND)),
        ]
    )
    (sentence,) = found.sentences
    assert (
        "it was under way for 5.0 s, 5.0 s of that after the request's end; it ended (abort) after 5 ms"
        in (sentence)
    )


def test_what_comes_late_is_within_its_request_too():
    """A load reported after its request's export does not begin before the request."""
    log = Log()
    log.add(DECODE_CORE, closed_decode())
    log.add(DECODE_WORKER, failed_load(start_time_unix_nano=TIME - SECOND), after=10 * GRACE)
    (load,) = Told(log.batches, SOURCES).check().named(semconv.KV_LOAD)
    assert load.start_unix_nano == TIME


def test_a_failed_request_has_lost_tokens_and_recomputed_none():
    """A failed request has lost tokens and no recomputed ones."""
    (request,) = told(failed_story(FAILED, finish_reason="error")).named(semconv.REQUEST)
    assert request.attributes[semconv.TOKENS_LOST] == 400
    assert not {semconv.TOKENS_RECOMPUTED, semconv.TOKENS_KEPT} & request.attributes.keys()
    (request,) = told(failed_story()).named(semconv.REQUEST)
    assert (request.attributes[semconv.TOKENS_RECOMPUTED], request.attributes[semconv.TOKENS_KEPT]) == (
        400,
        12,
    )
    assert semconv.TOKENS_LOST not in request.attributes


@pytest.mark.parametrize("duration", [TIME * 2, MOST])
@pytest.mark.parametrize("closed", [True, False])
def test_a_duration_that_exceeds_its_end_is_none(duration, closed):
    """A duration that leads to a start before 1970 counts as zero."""
    story = [
        (DECODE_WORKER, sample(DECODE, duration_nano=duration)),
        (DECODE_WORKER, probe(DECODE, duration_nano=duration)),
        *([(DECODE_CORE, closed_decode())] if closed else [(DECODE_CORE, deferral_start(DECODE))]),
    ]
    found = told(story)
    if closed:
        (load,) = found.named(semconv.KV_LOAD)
        assert load.start_unix_nano == load.end_unix_nano == TIME + 60 * MS


@pytest.mark.parametrize("start", [0, TIME, MOST])
def test_a_rebalance_is_where_times_can_be(start):
    """A rebalance whose times are below 1970 or beyond 2554 gets times in range."""
    layer = {"start_time_unix_nano": MOST, "duration_nano": MOST, "experts_received_remotely": 1}
    body = {"start_time_unix_nano": start, "duration_nano": MOST, "step": 3, "layers": [layer]}
    found = told([(DECODE_WORKER, event("eplb_rebalance", time_ns=TIME, **body))])
    assert [span.name for span in found.spans] == [semconv.EPLB_REBALANCE, semconv.EPLB_LAYER]


def test_a_failed_rebalance_has_no_balance_after_it():
    """A failed rebalance has no balance of the new map."""
    body: dict[str, Any] = {
        "result": common_pb2.TRANSFER_RESULT_ERROR, "duration_nano": MS,
        "balancedness_before": 0.87, "balancedness_after": 0.96,
    }  # fmt: skip
    failed = event("eplb_rebalance", **body)
    (span,) = told([(DECODE_WORKER, failed)]).spans
    assert span.attributes[semconv.BALANCEDNESS_BEFORE] == 0.87
    assert "0.96" not in event_words(failed)


GRID = [TIME + at for at in (-5 * SECOND, -MS, 0, 5 * MS, 60 * MS, 61 * MS, 500 * MS, 5 * SECOND)]
MOMENTS = st.sampled_from([*GRID, *GRID, 0, 1, 1 << 63, MOST])
LENGTHS = st.sampled_from([0, MS, 10 * MS, SECOND, 6 * SECOND, TIME, TIME * 2, MOST])
REASONS = st.sampled_from([common_pb2.DEFERRAL_REASON_REMOTE_KV, common_pb2.DEFERRAL_REASON_ENCODER_CACHE])
CHANNELS = st.sampled_from([common_pb2.CHANNEL_KV, common_pb2.CHANNEL_EC])


def _of_core(strategy):
    return st.tuples(st.just(DECODE_CORE), strategy)


def _of_worker(strategy):
    return st.tuples(st.just(DECODE_WORKER), strategy)


ENTRIES = st.one_of(
    _of_core(
        st.builds(
            lambda time_ns, arrival, scheduled, token: closed_decode(
                time_ns=time_ns,
                arrival_time_unix_nano=arrival,
                scheduled_time_unix_nano=scheduled,
                first_token_time_unix_nano=token,
            ),
            MOMENTS, MOMENTS, MOMENTS, MOMENTS,
        )
    ),
    _of_core(st.builds(lambda time_ns, reason: deferral_start(DECODE, time_ns=time_ns or 1, reason=reason), MOMENTS, REASONS)),
    _of_core(
        st.builds(
            lambda start, time_ns, reason, begun, ending: deferral_end(
                DECODE, start_ns=start, time_ns=time_ns, reason=reason, ending=ending,
                transfer_start_time_unix_nano=begun,
            ),
            MOMENTS, MOMENTS, REASONS, MOMENTS, st.sampled_from([1, 2, 3]),
        )
    ),
    _of_worker(
        st.builds(
            lambda start, time_ns, mode, attempt, item: failed_load(
                start_time_unix_nano=start, time_ns=time_ns, mode=mode, attempt=attempt, item=item
            ),
            MOMENTS, MOMENTS, st.sampled_from(common_pb2.FailureMode.values()), st.integers(0, 2), st.text("ab", max_size=1),
        )
    ),
    _of_worker(st.builds(lambda end, took, channel: sample(DECODE, end_time_unix_nano=end, duration_nano=took, channel=channel), MOMENTS, LENGTHS, CHANNELS)),
    _of_worker(st.builds(lambda end, took: probe(DECODE, end_time_unix_nano=end, duration_nano=took), MOMENTS, LENGTHS)),
    _of_core(
        st.builds(
            lambda kind, time_ns, channel, attempt: outcome(DECODE, kind, time_ns=time_ns, channel=channel, attempt=attempt),
            st.sampled_from([1, 2, 3, 4]), MOMENTS, CHANNELS, st.integers(0, 2),
        )
    ),
    _of_core(st.builds(lambda time_ns: lease(DECODE, time_ns=time_ns), MOMENTS)),
    _of_worker(
        st.builds(
            lambda queued, start, end: handshake(
                DECODE, queued_time_unix_nano=queued, start_time_unix_nano=start, end_time_unix_nano=end
            ),
            MOMENTS, MOMENTS, MOMENTS,
        )
    ),
    _of_worker(
        st.builds(
            lambda time_ns, delay: event(
                "transfer_delayed", DECODE, time_ns=time_ns, channel=1, delay_nano=delay, handshake_id=HANDSHAKE
            ),
            MOMENTS, LENGTHS,
        )
    ),
    _of_worker(
        st.builds(
            lambda time_ns, since, released: event(
                "blocks_pinned", DECODE, time_ns=time_ns, channel=1, since_time_unix_nano=since, released=released
            ),
            MOMENTS, MOMENTS, st.booleans(),
        )
    ),
    _of_worker(
        st.builds(
            lambda time_ns, start, took, pause, result, layer: event(
                "eplb_rebalance", time_ns=time_ns, start_time_unix_nano=start, duration_nano=took,
                pause_nano=pause, result=result, balancedness_before=0.5, balancedness_after=0.9,
                layers=[{"start_time_unix_nano": layer, "duration_nano": took, "experts_received_locally": 1}],
            ),
            MOMENTS, MOMENTS, LENGTHS, LENGTHS, st.sampled_from([1, 2]), MOMENTS,
        )
    ),
    st.builds(lambda last_seen: (None, last_seen), MOMENTS),
)  # fmt: skip


def _place(item):
    """Return the key of an entry that an engine emits once: an outcome, an end, a failure or a sample."""
    entry = item[1]
    if isinstance(entry, int):
        return "lost"
    if not hasattr(entry, "WhichOneof"):
        return (type(entry).__name__, entry.end_time_unix_nano)
    kind = entry.WhichOneof("body")
    body = getattr(entry, kind)
    if kind == "load_outcome":
        return (kind, body.channel, max(body.attempt, 1))
    if kind == "deferral_end":
        return (kind, body.reason, body.start_time_unix_nano or entry.time_unix_nano)
    return (
        kind
        if kind in {"request_closed", "lease_closed", "handshake", "eplb_rebalance"}
        else (kind, entry.time_unix_nano)
    )


# A scheduler tells of one request in this order; workers tell when they can.
ORDER = ("deferral_start", "load_outcome", "deferral_end", "request_closed", "lease_closed")


def in_order(rows):
    """Sort the scheduler's entries among their own places."""
    mine = [index for index, (teller, _) in enumerate(rows) if teller == DECODE_CORE]
    told = sorted((rows[index] for index in mine), key=lambda row: ORDER.index(row[1].WhichOneof("body")))
    rows = list(rows)
    for index, row in zip(mine, told, strict=True):
        rows[index] = row
    return rows


@given(
    st.lists(st.tuples(ENTRIES, st.sampled_from([MS, GRACE // 2, 2 * GRACE])), min_size=1, max_size=9,
             unique_by=lambda row: _place(row[0]))
)  # fmt: skip
@settings(max_examples=RANDOM_LOGS, deadline=None)
def test_whatever_an_engine_sends_adds_up(rows):
    """Any times in any order, in any segments, give consistent numbers."""
    log = Log()
    for (teller, entry), (_, pause) in zip(in_order([row for row, _ in rows]), rows, strict=True):
        if teller is None:
            log.lose(DECODE_CORE, last_seen=entry, after=pause)
        else:
            log.add(teller, entry, after=pause)
    Told(log.batches, SOURCES).check()


@given(st.permutations([*prefill_story(), *failed_story()]), st.data())
@settings(max_examples=RANDOM_LOGS // 3, deadline=None)
def test_the_stories_of_every_day_add_up_in_any_order(entries, data):
    """Normal stories in any segments, with a loss and a return in between, give consistent numbers."""
    log = Log()
    at = data.draw(st.integers(0, len(entries)))
    for index, (teller, entry) in enumerate(in_order(entries)):
        if index == at:
            log.lose(DECODE_CORE, last_seen=TIME + 50 * MS)
        log.add(teller, entry, after=data.draw(st.sampled_from([MS, 2 * GRACE])))
    Told(log.batches, SOURCES).check()
