"""Traces of requests from the journal."""

from __future__ import annotations

import pytest
from penstock.agent.errors import NotFoundError
from penstock.agent.model import PolicySource
from penstock.agent.traces.query.trace import get_trace
from penstock.agent.traces.spans import ids, semconv
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import PEER, TIME, deferral_start
from tests.support.agent.questions import sentences_of, trace_of
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    PREFILL,
    PREFILL_CORE,
    TRACEPARENT,
    closed,
    closed_decode,
    decode_story,
    failed_load,
    failed_story,
    handshake,
    lost,
    outcome,
    prefill_story,
    source,
)

TRACE = ids.trace_id(PREFILL)


OTHER = "cmpl-other-0-ffffffff"
CALM = PolicySource("calm", 3, "ann@host", 0, ("kvLoadFailure.action",))
LIMITS = PolicySource("limits", 1, "bob@host", 0, ("kvLoadFailure.recomputeBudget.tokensPerSecond",))


async def test_spans_name_the_policy_of_the_field_that_decided(book):
    """Each span with a policy hash has name, generation and author as of the decision, if known."""
    decided = outcome(DECODE)
    await book.append(
        [(DECODE_WORKER, failed_load()), (DECODE_CORE, decided)], [(DECODE_CORE, closed_decode())]
    )

    def known(_source, _hash, unix_nano):
        return (CALM, LIMITS) if unix_nano == decided.time_unix_nano else ()

    with book.journal.reader() as reader:
        named, plain = get_trace(reader, DECODE, policies=known).spans, get_trace(reader, DECODE).spans
    having = [span for span in named if semconv.POLICY_HASH in span.attributes]
    assert {span.name for span in having} == {semconv.REQUEST, semconv.KV_LOAD, semconv.RECOMPUTE}
    for span in having:
        found = [
            span.attributes[key]
            for key in (semconv.POLICY_NAME, semconv.POLICY_GENERATION, semconv.POLICY_AUTHOR)
        ]
        assert found == ["calm", "3", "ann@host"]
    assert not any(semconv.POLICY_NAME in span.attributes for span in plain)


@pytest.mark.parametrize(
    "text", [DECODE, PREFILL, "cmpl-chat-0", "cmpl-chat-0-bb", "cmpl-ch", "chat", "chat-0-aaaa", TRACE]
)
async def test_any_name_finds_both_sides(book, text):
    """Internal and external ids, what the client sent, prefixes and the trace id lead to one tree."""
    await book.append(
        prefill_story(), decode_story(), [(DECODE_CORE, closed(OTHER, external_request_id="other"))]
    )
    trace = trace_of(book, text)
    assert trace.trace_id == TRACE
    assert sorted(span.name for span in trace.spans) == sorted(
        [
            semconv.REQUEST,
            semconv.REQUEST,
            semconv.KV_LOAD,
            semconv.KV_LEASE,
            semconv.DEFERRAL,
            semconv.HANDSHAKE,
        ]
    )
    assert {span.service for span in trace.spans} == {"vllm-prefill", "vllm-decode"}


async def test_parents_come_before_children(book):
    """The asked request comes first, each span after its parent, and the tree is whole."""
    await book.append(prefill_story(), failed_story())
    trace = trace_of(book, DECODE)
    seen = set()
    for span in trace.spans:
        assert not span.parent_span_id or span.parent_span_id in seen
        seen.add(span.span_id)
    first = trace.spans[0]
    assert (first.name, first.request_id, first.key.server) == (semconv.REQUEST, DECODE, "decode")


async def test_a_span_as_the_wire_has_it(book):
    """Attributes are text, kind and status are words, links keep what they lead to."""
    await book.append(failed_story())
    load = next(span for span in trace_of(book, DECODE).spans if span.name == semconv.KV_LOAD)
    assert (load.kind, load.status) == ("client", "error")
    assert load.status_message == "handshake refused: connection refused"
    assert load.attributes[semconv.SERVER_PORT] == "5600"
    assert load.attributes[semconv.RANKS] == "0"
    assert [link.attributes["penstock.link"] for link in load.links] == [semconv.REQUEST, semconv.HANDSHAKE]
    assert load.end_time_unix_nano - load.start_time_unix_nano == 51 * MS


async def test_the_ids_are_those_of_the_export(book):
    """An id printed by agentctl is found in the trace backend."""
    await book.append(prefill_story(traceparent=TRACEPARENT))
    request, held = trace_of(book, PREFILL).spans
    assert request.span_id == held.parent_span_id == ids.RequestIdentity(PREFILL).span_id
    assert request.parent_span_id == TRACEPARENT[36:52]
    assert trace_of(book, TRACEPARENT[3:35]).spans[0].span_id == request.span_id


async def test_the_clean_up_request_belongs_to_it(book):
    """Any request that names a prefill request leads to all requests that name it."""
    clean_up = closed_decode("cleanup-0-dddddddd", finish_reason="abort", external_request_id="")
    await book.append(failed_story(), [(DECODE_CORE, clean_up)])
    requests = {span.request_id for span in trace_of(book, DECODE).spans if span.request_id}
    assert requests == {DECODE, "cleanup-0-dddddddd"}


async def test_the_handshake_of_a_victim_is_found(book):
    """A collateral victim's trace has the handshake although its waiters do not include it."""
    victim = failed_load(mode=common_pb2.FAILURE_MODE_COLLATERAL, caused_by_request_id=OTHER)
    await book.append(
        [(DECODE_WORKER, handshake(OTHER)), (DECODE_WORKER, victim), (DECODE_CORE, closed_decode())]
    )
    trace = trace_of(book, DECODE)
    assert [span.name for span in trace.spans] == [semconv.REQUEST, semconv.KV_LOAD, semconv.HANDSHAKE]
    (sentence,) = sentences_of(book, DECODE)
    assert f"collateral, refused, caused by a handshake that request {OTHER} began" in sentence


@pytest.mark.parametrize("text", ["", "nobody", "cmpl-chat-1", "f" * 32])
async def test_no_request_of_that_name(book, text):
    """The error names the id and where to look."""
    await book.append(decode_story())
    with pytest.raises(NotFoundError, match=f"no request '{text}' in the journal; 'agentctl get events'"):
        trace_of(book, text)


async def test_a_name_of_several_requests(book):
    """An id that a client uses twice, or a short prefix, is refused with the ids to choose from."""
    story = [(DECODE_CORE, closed(f"cmpl-chat-0-0000000{n}")) for n in range(7)]
    await book.append(story)
    for text in ("chat", "cmpl-chat-0", "cmpl"):
        with pytest.raises(
            NotFoundError, match=r"several requests: cmpl-chat-0-00000000, .* and 2 more; give"
        ):
            trace_of(book, text)


async def test_an_unfinished_request(book):
    """An unfinished request is shown with its open deferrals."""
    await book.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME, remote_request_id=PREFILL))
    request, wait = trace_of(book, DECODE).spans
    assert request.attributes[semconv.UNFINISHED] == "true"
    assert wait.attributes[semconv.DEFERRAL_REASON] == "remote_kv"
    assert sentences_of(book, DECODE) == [
        f"Request {DECODE} on decode engine decode/0 has not finished: it is deferred (remote_kv, {PEER})."
    ]


async def test_a_request_of_a_lost_engine(book):
    """A loss, logged by the agent without a request id, ends the open requests of its engine."""
    await book.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME))
    await book.add(PREFILL_CORE, lost(DECODE_CORE))
    request, wait = trace_of(book, DECODE).spans
    assert request.attributes[semconv.ENGINE_LOST] == "true"
    assert wait.attributes[semconv.ENDING] == "engine_lost"
    assert sentences_of(book, DECODE) == [
        f"Request {DECODE} on decode engine decode/0 ended with its engine, which vanished or was stopped."
    ]


async def test_a_request_goes_on_when_another_process_says_goodbye(book):
    """A goodbye of another epoch under the engine's name leaves the request unfinished."""
    await book.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME))
    await book.add(source(66, "decode", "decode"), goodbye={"reason": "exit"})
    request, _ = trace_of(book, DECODE).spans
    assert semconv.ENGINE_LOST not in request.attributes
    assert request.attributes[semconv.UNFINISHED] == "true"
