"""What the spans of a request say."""

from __future__ import annotations

import pytest
from penstock.agent.traces.spans import ids, semconv
from penstock.proto.names import label
from penstock.proto.v1 import common_pb2

from tests.support.agent.assembled import only, spans_of
from tests.support.agent.batches import PEER, TIME, deferral_end, deferral_start, event, transfer_failure
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    HANDSHAKE,
    MS,
    PREFILL,
    PREFILL_CORE,
    closed,
    closed_decode,
    decode_story,
    failed_load,
    failed_story,
    handshake,
    lease,
    outcome,
    prefill_story,
    sample,
)

PREFILL_TRACE = ids.trace_id(PREFILL)
PREFILL_SPAN = ids.RequestIdentity(PREFILL).span_id


def test_a_good_request_is_one_trace_on_both_sides():
    """Prefill's and decode's spans share a trace without a header, and decode's load links to prefill."""
    found = spans_of(prefill_story(), decode_story())
    prefill, decode = found[semconv.REQUEST]
    load, wait, held = (
        only(found, semconv.KV_LOAD),
        only(found, semconv.DEFERRAL),
        only(found, semconv.KV_LEASE),
    )
    handshaking = only(found, semconv.HANDSHAKE)
    assert {span.trace_id for span in (prefill, decode, load, wait, held)} == {PREFILL_TRACE}
    assert (prefill.parent_span_id, decode.parent_span_id) == ("", "")
    assert prefill.span_id == PREFILL_SPAN
    assert (held.parent_span_id, load.parent_span_id) == (prefill.span_id, decode.span_id)
    assert [(link.trace_id, link.span_id, link.to) for link in load.links] == [
        (PREFILL_TRACE, prefill.span_id, semconv.REQUEST),
        (handshaking.trace_id, handshaking.span_id, semconv.HANDSHAKE),
    ]
    assert all(span.error is None for spans in found.values() for span in spans)


def test_a_load_over_two_ranks_is_one_span():
    """Bytes and handles add up; the span covers both transfers."""
    load = only(spans_of(decode_story()), semconv.KV_LOAD)
    assert (load.start_unix_nano, load.end_unix_nano) == (TIME + 50 * MS, TIME + 62 * MS)
    assert load.client
    assert load.attributes == {
        semconv.REQUEST_ID: DECODE,
        semconv.PEER: PEER,
        semconv.PEER_ENGINE_ID: "engine-id",
        semconv.SERVER_ADDRESS: "10.0.0.7",
        semconv.SERVER_PORT: 5600,
        semconv.CHANNEL: "kv",
        semconv.DIRECTION: "receive",
        semconv.CONNECTOR: "NixlConnector",
        semconv.ATTEMPT: 1,
        semconv.RANKS: (0, 1),
        semconv.TRANSFERS: 2,
        semconv.BYTES: 2 << 20,
        semconv.DESCRIPTORS: 8,
    }


def test_the_request_of_a_failed_load_says_it_all():
    """Outcome, mode, error type, peer, cost and decision are on the request's span."""
    request = only(spans_of(failed_story()), semconv.REQUEST)
    assert request.error is None
    assert request.attributes == {
        semconv.OPERATION_NAME: "text_completion",
        semconv.PROVIDER_NAME: "vllm",
        semconv.REQUEST_MODEL: "tiny",
        semconv.GEN_AI_REQUEST_ID: "cmpl-chat-0",
        semconv.REQUEST_ID: DECODE,
        semconv.REMOTE_REQUEST_ID: PREFILL,
        semconv.CLIENT_REQUEST_ID: "chat",
        semconv.REQUEST_ROLE: "decode",
        semconv.FINISH_REASON: "stop",
        semconv.FINISH_REASONS: ("stop",),
        semconv.INPUT_TOKENS: 412,
        semconv.OUTPUT_TOKENS: 16,
        semconv.LOCAL_CACHED_TOKENS: 0,
        semconv.EXTERNAL_CACHED_TOKENS: 400,
        semconv.TIME_IN_QUEUE: 0.005,
        semconv.TIME_TO_FIRST_TOKEN: 0.1,
        semconv.DEFERRED_SECONDS: 0.057,
        semconv.PEER: PEER,
        semconv.MODE: "handshake",
        semconv.CAUSE_ERROR_TYPE: "refused",
        semconv.OUTCOME: "recomputed",
        semconv.DECIDED_BY: "policy",
        semconv.POLICY_HASH: "0123456789abcdef0123",
        semconv.REASON: "recompute is the policy",
        semconv.TOKENS_KEPT: 12,
        semconv.TOKENS_RECOMPUTED: 400,
    }


def test_only_the_operation_that_failed_is_an_error():
    """A failed load and its handshake are errors, with ``error.type``; the recomputed request is not."""
    found = spans_of(failed_story())
    for span in (each for spans in found.values() for each in spans):
        assert (semconv.ERROR_TYPE in span.attributes) == (span.error is not None), span.name
    errors = {span.name: span.error for spans in found.values() for span in spans if span.error}
    assert errors == {
        semconv.KV_LOAD: "handshake refused: connection refused",
        semconv.HANDSHAKE: "refused: connection refused",
    }
    again = only(found, semconv.RECOMPUTE)
    assert (again.start_unix_nano, again.end_unix_nano) == (TIME + 61 * MS, TIME + 100 * MS)


def test_a_failed_request_is_an_error():
    """Only the outcome failed makes the request an error, with the cause as its message."""
    found = spans_of(failed_story(common_pb2.OUTCOME_FAILED, finish_reason="error"))
    request = only(found, semconv.REQUEST)
    assert request.error == "handshake refused: connection refused"
    assert request.attributes[semconv.ERROR_TYPE] == request.attributes[semconv.CAUSE_ERROR_TYPE] == "refused"
    assert semconv.RECOMPUTE not in found


def test_a_load_and_its_handshake_fail_as_two_linked_spans():
    """Two ranks' failures are one load; it links to the handshake that both name."""
    found = spans_of(failed_story())
    load, handshaking = only(found, semconv.KV_LOAD), only(found, semconv.HANDSHAKE)
    assert (load.start_unix_nano, load.end_unix_nano) == (TIME + 10 * MS, TIME + 61 * MS)
    assert (handshaking.trace_id, handshaking.span_id) == ids.handshake_ids(HANDSHAKE)
    assert handshaking.span_id in {link.span_id for link in load.links}
    assert load.attributes[semconv.ERROR_TYPE] == "refused"
    assert handshaking.client
    assert (
        handshaking.attributes[semconv.SERVER_PORT]
        == handshaking.attributes[semconv.NETWORK_PEER_PORT]
        == 5600
    )
    assert handshaking.attributes[semconv.NETWORK_PEER_ADDRESS] == "10.0.0.7"
    assert handshaking.attributes[semconv.NETWORK_TRANSPORT] == "tcp"
    assert handshaking.attributes[semconv.WAITING_REQUEST_IDS] == (DECODE,)


def test_a_victim_links_to_the_handshake_of_another():
    """A collateral failure names the request that caused it and links to the shared handshake."""
    victim = "cmpl-victim-0-cccccccc"
    story = [
        (DECODE_WORKER, handshake(DECODE)),
        (
            DECODE_WORKER,
            failed_load(
                victim,
                mode=common_pb2.FAILURE_MODE_COLLATERAL,
                caused_by_request_id=DECODE,
                remote_request_id="p-2",
            ),
        ),
        (DECODE_CORE, closed_decode(victim, "p-2")),
    ]
    found = spans_of(story)
    load = only(found, semconv.KV_LOAD)
    assert load.attributes[semconv.CAUSED_BY_REQUEST_ID] == DECODE
    assert ids.handshake_ids(HANDSHAKE) in [(link.trace_id, link.span_id) for link in load.links]
    assert only(found, semconv.REQUEST).attributes[semconv.MODE] == "collateral"


def test_the_clean_up_request_lands_in_the_same_trace():
    """The clean-up that vLLM sends after a failure is another request that names the same prefill request."""
    clean_up = closed_decode("cleanup-dddddddd", finish_reason="abort", external_cached_tokens=0)
    found = spans_of(failed_story(), [(DECODE_CORE, clean_up)])
    decode, cleaning = found[semconv.REQUEST]
    assert decode.trace_id == cleaning.trace_id == PREFILL_TRACE
    # It has no load, so the link is on the request.
    assert [link.span_id for link in cleaning.links] == [PREFILL_SPAN]


def test_a_lease_that_was_not_read():
    """An expired lease is one error span although the worker reports it too."""
    expired = transfer_failure(
        PREFILL,
        time_ns=TIME + 800 * MS,
        mode=common_pb2.FAILURE_MODE_EXPIRED,
        direction=common_pb2.DIRECTION_SEND,
    )
    story = [
        (PREFILL_CORE, closed(PREFILL, kv_role=common_pb2.ROLE_PREFILL)),
        (PREFILL_CORE, expired),
        (PREFILL_CORE, lease(expired=True)),
    ]
    found = spans_of(story)
    held = only(found, semconv.KV_LEASE)
    assert held.error == "expired: 26 blocks were not read in time"
    assert (held.attributes[semconv.MODE], held.attributes[semconv.ENDING]) == ("expired", "expired")
    assert only(found, semconv.REQUEST).error is None


def test_a_failure_outside_of_a_load_is_a_span_of_its_own():
    """A lost notification does not make the good load before it a failed one."""
    notification = transfer_failure(
        DECODE, time_ns=TIME + 70 * MS, mode=common_pb2.FAILURE_MODE_NOTIFICATION, error_text="gone"
    )
    found = spans_of([*decode_story()[:-1], (DECODE_WORKER, notification), decode_story()[-1]])
    good, bad = sorted(found[semconv.KV_LOAD], key=lambda span: span.error or "")
    assert (good.error, bad.error) == (None, "notification refused: gone")
    assert good.span_id != bad.span_id


def test_a_deferral_that_ended_is_one_span():
    """An end matches its start although their times differ by nanoseconds."""
    story = decode_story()
    story[0] = (DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 5 * MS + 321))
    assert only(spans_of(story), semconv.DEFERRAL).attributes[semconv.ENDING] == "ready"


@pytest.mark.parametrize(
    ("began", "waited"), [(0, None), (TIME + 25 * MS, 0.02), (TIME + 4 * MS, 0.0), (TIME + 80 * MS, None)]
)
def test_how_long_a_deferral_waited_for_its_transfer(began, waited):
    """A transfer under way before has a wait of 0; one that never began, or began after the end, has none."""
    end = deferral_end(
        DECODE, start_ns=TIME + 5 * MS, time_ns=TIME + 60 * MS, transfer_start_time_unix_nano=began
    )
    story = [(DECODE_CORE, end), (DECODE_CORE, closed_decode())]
    told = only(spans_of(story), semconv.DEFERRAL).attributes
    assert told.get(semconv.START_WAIT_SECONDS) == waited


def test_a_push_is_a_load_as_its_sender_sees_it():
    """In push mode the prefill side writes: its transfers and failures are a load in the other direction."""
    send = common_pb2.DIRECTION_SEND
    good = spans_of([(PREFILL_CORE, sample(PREFILL, direction=send)), prefill_story()[0]])
    assert only(good, semconv.KV_LOAD).attributes[semconv.DIRECTION] == "send"
    failure = failed_load(PREFILL, direction=send, attempt=0, remote_request_id="")
    bad = only(spans_of([(PREFILL_CORE, failure), prefill_story()[0]]), semconv.KV_LOAD)
    assert (bad.error, bad.client) == ("handshake refused: connection refused", True)


def test_a_retried_load_has_two_spans():
    """Each attempt is a load; transfers go to the attempt of their time."""
    story = [
        (DECODE_WORKER, failed_load()),
        (DECODE_CORE, outcome(DECODE, common_pb2.OUTCOME_RETRIED)),
        (DECODE_WORKER, sample(DECODE, end_time_unix_nano=TIME + 40 * MS)),
        (DECODE_WORKER, sample(DECODE, end_time_unix_nano=TIME + 90 * MS)),
        (DECODE_CORE, closed_decode()),
    ]
    first, second = spans_of(story)[semconv.KV_LOAD]
    assert [span.attributes[semconv.ATTEMPT] for span in (first, second)] == [1, 2]
    assert [span.attributes[semconv.TRANSFERS] for span in (first, second)] == [1, 1]
    assert (first.attributes[semconv.OUTCOME], second.error) == ("retried", None)


def test_what_comes_through_this_machines_memory_is_counted_once():
    """The copies of two ranks are what a tier has brought, and what was there before."""
    story = [
        (DECODE_CORE, sample(DECODE, bytes=3 << 20, end_time_unix_nano=TIME + 40 * MS)),
        (DECODE_WORKER, sample(DECODE, bytes=2 << 20, peer="host")),
        (DECODE_WORKER, sample(DECODE, bytes=2 << 20, peer="host", rank=1)),
        (DECODE_CORE, closed_decode()),
    ]
    load = only(spans_of(story), semconv.KV_LOAD)
    assert (load.attributes[semconv.TRANSFERS], load.attributes[semconv.BYTES]) == (3, 4 << 20)


def test_an_encoder_cache_load():
    """EC loads are spans of their own, with the items that failed."""
    story = [
        (
            DECODE_WORKER,
            failed_load(
                channel=common_pb2.CHANNEL_EC,
                mode=common_pb2.FAILURE_MODE_LOAD,
                error_type=common_pb2.ERROR_TYPE_CORRUPT,
                item="hash-1",
                handshake_id=0,
            ),
        ),
        (DECODE_CORE, outcome(DECODE, channel=common_pb2.CHANNEL_EC, items_recomputed=1)),
        (DECODE_CORE, closed(DECODE)),
    ]
    found = spans_of(story)
    load = only(found, semconv.EC_LOAD)
    assert load.attributes[semconv.ITEMS] == ("hash-1",)
    assert load.links == ()
    assert only(found, semconv.RECOMPUTE).attributes[semconv.ITEMS_RECOMPUTED] == 1


def test_a_delayed_load():
    """A load behind another peer's handshake has the delay and that peer."""
    delayed = event(
        "transfer_delayed",
        DECODE,
        channel=common_pb2.CHANNEL_KV,
        delay_nano=400 * MS,
        caused_by_peer={"address": "10.0.0.9:5600"},
        handshake_id=7,
    )
    found = spans_of([(DECODE_WORKER, delayed), *decode_story()])
    load = only(found, semconv.KV_LOAD)
    for span in (load, only(found, semconv.REQUEST)):
        assert span.attributes[semconv.DELAY_SECONDS] == 0.4
        assert span.attributes[semconv.DELAYED_BY_PEER] == "10.0.0.9:5600"
    assert ids.handshake_ids(7) in [(link.trace_id, link.span_id) for link in load.links]


def test_a_request_whose_peer_is_in_quarantine():
    """A load that was not tried has no span; request and recomputation have the decision and the peer."""
    decided = outcome(
        DECODE,
        mode=common_pb2.FAILURE_MODE_UNSPECIFIED,
        error_type=common_pb2.ERROR_TYPE_UNSPECIFIED,
        decided_by=common_pb2.DECIDED_BY_QUARANTINE,
        observed_outcome=common_pb2.OUTCOME_FAILED,
        observed_reason="412 tokens lost, at most 16 are recomputed",
    )
    decided.rehearsal = True
    found = spans_of([(DECODE_CORE, decided), (DECODE_CORE, closed(DECODE))])
    assert semconv.KV_LOAD not in found
    for span in (only(found, semconv.REQUEST), only(found, semconv.RECOMPUTE)):
        attributes = span.attributes
        assert attributes[semconv.DECIDED_BY] == "quarantine"
        assert attributes[semconv.PEER] == PEER
        assert attributes[semconv.OBSERVED_OUTCOME] == "failed"
        assert attributes[semconv.OBSERVED_REASON] == "412 tokens lost, at most 16 are recomputed"
        assert attributes[semconv.REHEARSAL] is True
        assert semconv.MODE not in attributes
        assert span.error is None


@pytest.mark.parametrize(
    "decided_by", [common_pb2.DECIDED_BY_POLICY, common_pb2.DECIDED_BY_BUDGET, common_pb2.DECIDED_BY_DEADLINE]
)
def test_the_decision_is_on_load_and_request(decided_by):
    """The metrics' label of the decision, and the reason, are on the load and on the request."""
    decided = outcome(DECODE, decided_by=decided_by, reason="the budget has room for 12")
    found = spans_of([(DECODE_WORKER, failed_load()), (DECODE_CORE, decided), (DECODE_CORE, closed(DECODE))])
    for name in (semconv.REQUEST, semconv.KV_LOAD, semconv.RECOMPUTE):
        attributes = only(found, name).attributes
        assert attributes[semconv.DECIDED_BY] == label(common_pb2.DecidedBy, decided_by)
        assert attributes[semconv.REASON] == "the budget has room for 12"


def test_a_rehearsal_is_marked():
    """A failure that a drill injected is marked on its span and on the request."""
    failure, done = failed_load(), outcome(DECODE)
    failure.rehearsal = done.rehearsal = True
    found = spans_of([(DECODE_WORKER, failure), (DECODE_CORE, done), (DECODE_CORE, closed_decode())])
    for name in (semconv.REQUEST, semconv.KV_LOAD, semconv.RECOMPUTE):
        assert only(found, name).attributes[semconv.REHEARSAL] is True


def test_each_entry_belongs_to_one_span():
    """Each entry belongs to one span, as exemplars need."""
    found = spans_of(prefill_story(), failed_story())
    told = [id(entry.body) for spans in found.values() for span in spans for entry in span.entries]
    assert len(told) == len(set(told))
