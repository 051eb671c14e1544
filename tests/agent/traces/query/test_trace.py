"""Traces and explanations from the journal."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.ctl.render.span_tree import tree_lines
from penstock.agent.errors import NotFoundError
from penstock.agent.journal.reader import Reader
from penstock.agent.model import PolicySource
from penstock.agent.traces.query import search
from penstock.agent.traces.query.explain import explain_request
from penstock.agent.traces.query.trace import get_trace
from penstock.agent.traces.spans import ids, semconv
from penstock.agent.traces.spans.policy_names import no_policies
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import PEER, TIME, deferral_end, deferral_start, event, transfer_failure
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    PREFILL,
    PREFILL_CORE,
    SECOND,
    TRACEPARENT,
    closed,
    closed_decode,
    decode_story,
    failed_load,
    failed_story,
    handshake,
    lease,
    lost,
    outcome,
    prefill_story,
    sample,
    source,
)

OTHER = "cmpl-other-0-ffffffff"
TRACE = ids.trace_id(PREFILL)


def trace_of(book, text):
    """Ask for a trace."""
    with book.journal.reader() as reader:
        return get_trace(reader, text)


def sentences_of(book, text, policies=no_policies):
    """Ask for an explanation."""
    with book.journal.reader() as reader:
        return list(explain_request(reader, text, policies).sentences)


CALM = PolicySource("calm", 3, "ann@host", 0, ("kvLoadFailure.action",))
LIMITS = PolicySource("limits", 1, "bob@host", 0, ("kvLoadFailure.recomputeBudget.tokensPerSecond",))
WAITS = PolicySource("waits", 7, "", 0, ("deferral.onTimeout",))


@pytest.mark.parametrize(
    ("decided_by", "words"),
    [
        (common_pb2.DECIDED_BY_POLICY, "decided by policy calm (generation 3, by ann@host)"),
        (
            common_pb2.DECIDED_BY_QUARANTINE,
            "decided by the peer's quarantine under policy calm (generation 3, by ann@host)",
        ),
        (
            common_pb2.DECIDED_BY_BUDGET,
            "decided by the recompute budget under policy limits (generation 1, by bob@host)",
        ),
        (common_pb2.DECIDED_BY_DEADLINE, "decided by the deadline under policy waits (generation 7)"),
        (
            common_pb2.DECIDED_BY_VLLM,
            (
                "decided by vLLM's own configuration under policy calm (generation 3, by ann@host), "
                "limits (generation 1, by bob@host), waits (generation 7)"
            ),
        ),
    ],
)
async def test_explain_names_the_policy_of_the_field_that_decided(book, decided_by, words):
    """Of several that were merged; asked for at the time of the decision, in the engine that decided."""
    decided = outcome(DECODE, decided_by=decided_by)
    asked = []

    def known(of, hash_, unix_nano):
        asked.append((of.key, hash_, unix_nano))
        return (CALM, LIMITS, WAITS)

    await book.append(
        [(DECODE_WORKER, failed_load()), (DECODE_CORE, decided)], [(DECODE_CORE, closed_decode())]
    )
    (sentence,) = sentences_of(book, DECODE, known)
    assert words in sentence
    assert asked == [(DECODE_CORE.key, decided.load_outcome.policy_hash, decided.time_unix_nano)]


async def test_spans_name_the_policy_of_the_field_that_decided(book):
    """Every span that has its hash, as of the decision; without a name the hash stays alone."""
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
    """All that name the same prefill request are found from any of them."""
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


async def test_who_held_a_load_up_until_it_was_given_up(book):
    """A load that never reached its peer names the one that was in the way, in one sentence."""
    culprit = {"address": "10.0.0.9:5600"}
    given_up = failed_load(
        mode=common_pb2.FAILURE_MODE_COLLATERAL,
        error_type=common_pb2.ERROR_TYPE_TIMEOUT,
        error_text="it waited 6.0 s",
        caused_by_request_id=OTHER,
        caused_by_peer=culprit,
    )
    await book.append([(DECODE_WORKER, given_up), (DECODE_WORKER, DELAY), (DECODE_CORE, closed_decode())])
    (sentence,) = sentences_of(book, DECODE)
    assert f"could not load its KV state from {PEER}" in sentence
    assert (
        "(collateral, timeout, caused by the handshake with 10.0.0.9:5600 that request"
        f" {OTHER} began: it waited 6.0 s)"
    ) in sentence
    (load,) = (span for span in trace_of(book, DECODE).spans if span.name == semconv.KV_LOAD)
    assert (
        load.attributes[semconv.CAUSED_BY_PEER]
        == load.attributes[semconv.DELAYED_BY_PEER]
        == culprit["address"]
    )


@pytest.mark.parametrize("text", ["", "nobody", "cmpl-chat-1", "f" * 32])
async def test_nobody_of_that_name(book, text):
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
    """The loss is in the agent's own entries, which name no request."""
    await book.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME))
    await book.add(PREFILL_CORE, lost(DECODE_CORE))
    request, wait = trace_of(book, DECODE).spans
    assert request.attributes[semconv.ENGINE_LOST] == "true"
    assert wait.attributes[semconv.ENDING] == "engine_lost"
    assert sentences_of(book, DECODE) == [
        f"Request {DECODE} on decode engine decode/0 ended with its engine, which vanished or was stopped."
    ]


async def test_a_request_goes_on_when_another_process_says_goodbye(book):
    """Under the same engine's name, with an epoch of its own."""
    await book.add(DECODE_CORE, deferral_start(DECODE, time_ns=TIME))
    await book.add(source(66, "decode", "decode"), goodbye={"reason": "exit"})
    request, _ = trace_of(book, DECODE).spans
    assert semconv.ENGINE_LOST not in request.attributes
    assert request.attributes[semconv.UNFINISHED] == "true"


def slow_handshake_story():
    """Tell a load that took 54 ms after a handshake of 12 s."""
    at = {"start_time_unix_nano": TIME + 300 * MS, "end_time_unix_nano": TIME + 12_300 * MS}
    queued = {"queued_time_unix_nano": TIME + 10 * MS}
    ended = TIME + 12_360 * MS
    return [
        (DECODE_WORKER, handshake(DECODE, failed=False, **queued, **at)),
        (DECODE_WORKER, sample(DECODE, end_time_unix_nano=TIME + 12_355 * MS, duration_nano=54 * MS)),
        (DECODE_CORE, deferral_start(DECODE, time_ns=TIME + 10 * MS, remote_request_id=PREFILL)),
        (DECODE_CORE, deferral_end(DECODE, start_ns=TIME + 10 * MS, time_ns=ended)),
        (DECODE_CORE, closed_decode(time_ns=TIME + 13 * SECOND)),
    ]


async def test_explain_splits_a_wait_and_finds_the_long_lease(book):
    """Handshake 12 s, transfer 54 ms; and the other side's blocks were held for longer than usual."""
    story = [
        (PREFILL_CORE, closed(PREFILL, kv_role=common_pb2.ROLE_PREFILL)),
        (PREFILL_CORE, lease(time_ns=TIME + 13_400 * MS)),
    ]
    usual = [(PREFILL_CORE, lease(f"usual-{number}")) for number in range(9)]
    await book.append(story, slow_handshake_story(), usual)
    decode, prefill = sentences_of(book, DECODE)
    assert decode == (
        f"Request {DECODE} on decode engine decode/0 was deferred for 12.3 s (remote_kv, {PEER}): handshake queue"
        " 290 ms, handshake 12.0 s (97%), transfer 54 ms, other 6 ms; it loaded KV state (400 tokens, 1 MiB) from"
        f" {PEER} in 54 ms; it ended (stop) after 13.0 s, 12.3 s of them deferred."
    )
    assert prefill == (
        f"Request {PREFILL} on prefill engine prefill/0 kept 26 blocks for its reader, read after 12.9 s: unusually"
        " long, the median of this engine's newest 9 leases is 300 ms."
    )
    with book.journal.reader() as reader:
        parts = explain_request(reader, DECODE).wait_parts
    assert [(part.part, part.duration.ToMilliseconds()) for part in parts] == [
        ("handshake_queue", 290),
        ("handshake", 12_000),
        ("transfer", 54),
        ("other", 6),
    ]
    assert {part.request_id for part in parts} == {DECODE}
    assert sum(part.share for part in parts) == pytest.approx(1)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (0, "after 12.9 s: unusually long; its engine has too few other leases to compare with"),
        (4, "after 12.9 s: unusually long; its engine has too few other leases to compare with"),
        (5, "without trouble"),
    ],
)
async def test_a_long_lease_is_compared_with_the_engine_s_others(book, others, said):
    """With fewer than five any lease over a second is unusual; where all are long, none is."""
    usual = [(PREFILL_CORE, lease(f"r{n}", time_ns=TIME + 12_500 * MS)) for n in range(others)]
    mine = [(PREFILL_CORE, closed(PREFILL)), (PREFILL_CORE, lease(time_ns=TIME + 13_400 * MS))]
    await book.append(mine, usual, [(DECODE_CORE, lease("another engine's"))])
    assert said in sentences_of(book, PREFILL)[0]


async def test_explain_a_good_request(book):
    """One sentence a side: what was moved, from where, how long it took."""
    await book.append(prefill_story(), decode_story())
    assert sentences_of(book, DECODE) == [
        (
            f"Request {DECODE} on decode engine decode/0 loaded KV state (400 tokens, 2 MiB) from {PEER} in 12 ms,"
            " without trouble; it ended (stop) after 500 ms, 60 ms of them deferred"
            " (handshake queue 1 ms, handshake 40 ms (67%), transfer 12 ms, other 7 ms)."
        ),
        (
            f"Request {PREFILL} on prefill engine prefill/0 kept 26 blocks for its reader, read after 300 ms,"
            " without trouble; it ended (stop) after 500 ms."
        ),
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "done"),
    [
        (
            common_pb2.OUTCOME_RECOMPUTED,
            {},
            (
                "400 tokens were computed again, 12 were kept, decided by policy 0123456789ab"
                " (recompute is the policy)"
            ),
        ),
        (
            common_pb2.OUTCOME_FAILED,
            {"decided_by": common_pb2.DECIDED_BY_VLLM, "policy_hash": "", "reason": ""},
            (
                "the request was failed, 400 tokens not recomputed,"
                " decided by vLLM's own configuration under no policy"
            ),
        ),
        (
            common_pb2.OUTCOME_FAILED,
            {"decided_by": common_pb2.DECIDED_BY_BUDGET, "reason": "the budget is spent."},
            (
                "the request was failed, 400 tokens not recomputed,"
                " decided by the recompute budget under policy 0123456789ab (the budget is spent)"
            ),
        ),
        (
            common_pb2.OUTCOME_RECOMPUTED,
            {
                "decided_by": common_pb2.DECIDED_BY_DEADLINE,
                "reason": "",
                "observed_outcome": common_pb2.OUTCOME_FAILED,
                "observed_reason": "at most 16 are recomputed",
            },
            (
                "400 tokens were computed again, 12 were kept, decided by the deadline under policy 0123456789ab;"
                " under the observed policy it would be failed (at most 16 are recomputed)"
            ),
        ),
        (
            common_pb2.OUTCOME_ABORTED,
            {"reason": ""},
            "the request was aborted, decided by policy 0123456789ab",
        ),
        (
            common_pb2.OUTCOME_RETRIED,
            {"reason": ""},
            "the load was tried again, decided by policy 0123456789ab",
        ),
    ],
)
async def test_explain_a_failed_load(book, kind, fields, done):
    """Peer, cause, action, who decided under which policy, and the cost."""
    await book.append(
        [(DECODE_WORKER, failed_load()), (DECODE_CORE, outcome(DECODE, kind, **fields))],
        [(DECODE_CORE, closed_decode())],
    )
    assert sentences_of(book, DECODE) == [
        (
            f"Request {DECODE} on decode engine decode/0 could not load its KV state from {PEER}"
            f" (handshake, refused: connection refused): {done}; it was under way for 50 ms;"
            " it ended (stop) after 500 ms."
        )
    ]


def slow_wait():
    """Build the end of a wait of 3 s."""
    return event(
        "deferral_end",
        DECODE,
        time_ns=TIME + 3 * SECOND,
        reason=common_pb2.DEFERRAL_REASON_REMOTE_KV,
        ending=common_pb2.DEFERRAL_ENDING_READY,
        start_time_unix_nano=TIME,
        peer={"address": PEER},
    )


INCOMPATIBLE: dict[str, Any] = {
    "error_type": common_pb2.ERROR_TYPE_INCOMPATIBLE,
    "error_text": "",
    "error_class": "",
    "incompatibility": {"factors": ["nixl_version", "block_size"]},
}
NOTIFICATION = transfer_failure(DECODE, mode=common_pb2.FAILURE_MODE_NOTIFICATION, error_text="gone")
DELAY = event(
    "transfer_delayed",
    DECODE,
    channel=common_pb2.CHANNEL_KV,
    peer={"address": PEER},
    delay_nano=400 * MS,
    caused_by_peer={"address": "10.0.0.9:5600"},
)


def timeless(kind, **fields):
    """Build an event without the start time of what it ends."""
    return event(kind, DECODE, **fields)


REHEARSED = failed_load()
REHEARSED.rehearsal = True

QUARANTINED = outcome(
    DECODE,
    mode=common_pb2.FAILURE_MODE_UNSPECIFIED,
    error_type=common_pb2.ERROR_TYPE_UNSPECIFIED,
    decided_by=common_pb2.DECIDED_BY_QUARANTINE,
    reason="",
)
REHEARSED_OUTCOME = outcome(DECODE)
REHEARSED_OUTCOME.rehearsal = True


def pinned(*, released=False, **fields):
    """Build a lease from TIME on, released 3 s later."""
    return event(
        "blocks_pinned",
        DECODE,
        time_ns=TIME + released * 3 * SECOND,
        channel=common_pb2.CHANNEL_KV,
        peer={"address": PEER},
        blocks=26,
        since_time_unix_nano=TIME,
        released=released,
        **fields,
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([failed_load(**INCOMPATIBLE)], "(handshake, incompatible, they differ in nixl_version, block_size)"),
        ([failed_load()], "no action was reported"),
        ([REHEARSED], f"from {PEER} in a drill (handshake"),
        ([failed_load(attempt=2)], f"from {PEER} (attempt 2) (handshake"),
        ([NOTIFICATION], f"had a failure with {PEER} (notification, refused: gone); it ended (stop)"),
        ([outcome(DECODE)], f"did without its KV load from {PEER} (handshake, refused): 400 tokens were"),
        (
            [QUARANTINED],
            (
                f"did without its KV load from {PEER} (the peer is in quarantine): 400 tokens were computed again,"
                " 12 were kept, decided by the peer's quarantine under policy 0123456789ab; it ended"
            ),
        ),
        (
            [outcome(DECODE, decided_by=common_pb2.DECIDED_BY_QUARANTINE)],
            f"its KV load from {PEER} (the peer is in quarantine since handshake, refused): 400 tokens were",
        ),
        ([REHEARSED_OUTCOME], f"load from {PEER} in a drill (handshake, refused): 400 tokens were"),
        (
            [pinned()],
            f"left 26 blocks pinned because {PEER} may still write to them; they are not released yet",
        ),
        ([pinned(), pinned(released=True)], "may still write to them; they were released after 3.0 s"),
        ([DELAY], f"waited 400 ms longer for {PEER} because the handshake with 10.0.0.9:5600 was in the way"),
        ([slow_wait()], f"was deferred for 3.0 s (remote_kv, {PEER}); it ended (stop) after"),
        (
            [timeless("deferral_end", reason=1, ending=1)],
            "computed 412 prompt tokens, without trouble; it ended (stop)",
        ),
        (
            [timeless("lease_closed", blocks=3, ending=LEASE_ENDING_EXPIRED)],
            "kept 3 blocks for a reader that did not come in an unknown time",
        ),
        ([lease(DECODE, expired=True)], "kept 26 blocks for a reader that did not come in 300 ms"),
        ([], "computed 412 prompt tokens, without trouble; it ended (stop) after 500 ms"),
    ],
)
async def test_explain_other_causes(book, entries, words):
    """Each cause has its sentence."""
    end = max([TIME, *(entry.time_unix_nano for entry in entries)]) + 500 * MS
    await book.append(
        [(DECODE_CORE, entry) for entry in entries], [(DECODE_CORE, closed_decode(time_ns=end))]
    )
    (sentence,) = sentences_of(book, DECODE)
    assert words in sentence


async def test_explain_what_was_never_scheduled(book):
    """A request that was let go before its first step has computed nothing."""
    closing = closed_decode(scheduled_time_unix_nano=0, finish_reason="abort")
    await book.append([(DECODE_CORE, closing)])
    (sentence,) = sentences_of(book, DECODE)
    assert "was not scheduled; it ended (abort)" in sentence


async def test_what_is_read_for_one_question_is_bounded(book, monkeypatch):
    """The newest entries are explained, and the answer says that older ones were left out."""
    await book.append([(DECODE_WORKER, failed_load())], [(DECODE_CORE, closed_decode())])
    monkeypatch.setattr(search, "_BYTES", 1)
    good, cut = sentences_of(book, DECODE)
    assert "without trouble" in good
    assert cut == (
        f"The log says more about {DECODE} than is read for one question; its oldest entries are missing here."
    )
    trace = trace_of(book, DECODE)
    (request,) = trace.spans
    assert request.attributes[semconv.HISTORY_CUT] == "true"
    assert "history_cut=true" in "\n".join(tree_lines(trace))


@pytest.mark.parametrize(("server", "read"), [("decode", 1), ("other", 0)])
async def test_what_is_read_of_engines_that_ended_is_bounded(book, monkeypatch, server, read):
    """However often an engine was stopped since; how other engines ended says nothing of a request."""
    await book.append(decode_story())
    for epoch in range(100, 110):
        await book.add(source(epoch, server, "decode"), goodbye={"reason": "exit"})
    batches = []

    def batch(reader, number, original=Reader.batch):
        batches.append(original(reader, number))
        return batches[-1]

    monkeypatch.setattr(Reader, "batch", batch)
    monkeypatch.setattr(search, "_BYTES", 1)
    request = trace_of(book, DECODE).spans[0]
    assert semconv.ENGINE_LOST not in request.attributes
    # The newest batch of all tells the time.
    *batches, _ = batches
    assert sum(Batch.FromString(each.body).HasField("goodbye") for each in batches) == read


async def test_entries_of_one_request_are_bounded(book, monkeypatch):
    """Entries are limited as in the export, but the newest stay; the answer counts the missing ones."""
    await book.append([(DECODE_WORKER, failed_load())] * 3, [(DECODE_CORE, closed_decode())])
    monkeypatch.setattr(search, "_MAX_ENTRIES", 2)
    assert len(sentences_of(book, DECODE)) == 2
    request = trace_of(book, DECODE).spans[0]
    assert request.attributes[semconv.ENTRIES_DROPPED] == "2"
    assert request.attributes[semconv.HISTORY_CUT] == "true"


async def test_the_clean_up_after_an_aborted_request_is_no_failure_of_it(book):
    """A load of a request that was neither scheduled nor deferred only frees the blocks of the other side."""
    closing = closed_decode(scheduled_time_unix_nano=0, finish_reason="abort")
    await book.append([(DECODE_WORKER, failed_load())], [(DECODE_CORE, closing)])
    (sentence,) = sentences_of(book, DECODE)
    assert "vLLM's own clean-up request; ignore" in sentence


async def test_an_engine_of_both_roles_is_named_without_one(book):
    """An engine of both roles is described without a role."""
    await book.add(source(41, "language", "both"), closed(DECODE))
    (sentence,) = sentences_of(book, DECODE)
    assert sentence.startswith(f"Request {DECODE} on engine language/0 ")
