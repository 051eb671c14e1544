"""Explanations of requests from the journal."""

from __future__ import annotations

import pytest
from penstock.agent.model import PolicySource
from penstock.agent.traces.query.explain import explain_request
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import PEER, TIME, deferral_end, deferral_start
from tests.support.agent.questions import sentences_of
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    PREFILL,
    PREFILL_CORE,
    SECOND,
    closed,
    closed_decode,
    decode_story,
    failed_load,
    handshake,
    lease,
    outcome,
    prefill_story,
    sample,
    source,
)

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
    """The explanation has the merged policy that set the deciding field, as of the decision."""
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


PEER_SLOW = PolicySource("slow", 2, "", 0, ("reflexes.slowPeer.action",))
GIVES_UP = PolicySource("short", 4, "", 0, ("reflexes.startWait.action",))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "the peer is slow; reflexes.slowPeer: its loads take 3 s or more, computing 100 tokens takes 0.1 s here",
            ("(its peer is slow): 400 tokens were computed again", "under policy slow (generation 2)"),
        ),
        (
            "the wait was dearer than computing; reflexes.startWait: 3 s waited for the load to begin",
            ("(it did not begin): 400 tokens were computed again", "under policy short (generation 4)"),
        ),
    ],
)
async def test_explain_says_what_a_reflex_did(book, reason, words):
    """In the words of its decision, with the policy that let it act."""
    decided = outcome(DECODE, decided_by=common_pb2.DECIDED_BY_REFLEX, mode=0, error_type=0, reason=reason)
    await book.append([(DECODE_CORE, decided)], [(DECODE_CORE, closed_decode())])
    (sentence,) = sentences_of(book, DECODE, lambda *_: (GIVES_UP, PEER_SLOW))
    assert all(each in sentence for each in (*words, "decided by a reflex of the engine", reason))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "reflexes.slowPeer: its loads take 3 s",
            "loaded all the same; what only observes would have computed instead",
        ),
        (
            "reflexes.startWait: 3 s waited for the load to begin",
            "waited on; what only observes would have given its load up",
        ),
    ],
)
async def test_explain_says_what_a_reflex_would_have_done(book, reason, words):
    """One that observes changes nothing, and is in no way of a request without trouble."""
    await book.append(
        [
            (DECODE_CORE, deferral_start(DECODE, time_ns=TIME, remote_request_id=PREFILL)),
            (
                DECODE_CORE,
                deferral_end(DECODE, start_ns=TIME, time_ns=TIME + 3_000 * MS, observed_reason=reason),
            ),
        ],
        [(DECODE_CORE, closed_decode())],
    )
    first, second = sentences_of(book, DECODE, lambda *_: ())
    assert "without trouble" in first
    assert f"{words} ({reason})." in second


async def test_explain_says_what_a_storm_would_have_failed(book):
    """The load was recomputed; the reflex only observes."""
    reason = "reflexes.recomputeStorm: requests queue for more than 2 s while others are recomputed"
    decided = outcome(DECODE, observed_outcome=common_pb2.OUTCOME_FAILED, observed_reason=reason)
    await book.append([(DECODE_CORE, decided)], [(DECODE_CORE, closed_decode())])
    (sentence,) = sentences_of(book, DECODE, lambda *_: ())
    assert f"; by a reflex that only observes it would be failed ({reason})" in sentence


def slow_handshake_story():
    """Build a load of 54 ms after a handshake of 12 s."""
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
    """A wait is split into its parts; the other side's unusually long lease is reported."""
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
        f" {PEER} in 54 ms; it ended (stop) after 13.0 s, deferred for 12.3 s of that."
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
    """With fewer than five other leases one over a second is unusual; among long ones none is."""
    usual = [(PREFILL_CORE, lease(f"r{n}", time_ns=TIME + 12_500 * MS)) for n in range(others)]
    mine = [(PREFILL_CORE, closed(PREFILL)), (PREFILL_CORE, lease(time_ns=TIME + 13_400 * MS))]
    await book.append(mine, usual, [(DECODE_CORE, lease("another engine's"))])
    assert said in sentences_of(book, PREFILL)[0]


@pytest.mark.parametrize(
    ("unseen_ms", "words"),
    [
        (990, "in 1.1 s (it ended up to 990 ms before that was seen), without trouble"),
        (100, "in 1.1 s, without"),
    ],
)
async def test_a_load_that_was_seen_late_says_so(book, unseen_ms, words):
    """Of a worker that looks seldom, the duration is an upper bound; the rank whose end is known best decides."""
    late = {"end_time_unix_nano": TIME + 1100 * MS, "duration_nano": 1070 * MS}
    mine = sample(DECODE, **late, end_uncertainty_nano=unseen_ms * MS)
    other = sample(DECODE, **late, end_uncertainty_nano=1000 * MS, rank=1)
    await book.append(
        [(DECODE_CORE, closed_decode(time_ns=TIME + 2 * SECOND))],
        [(DECODE_WORKER, mine), (DECODE_WORKER, other)],
    )
    assert words in sentences_of(book, DECODE)[0]


async def test_explain_a_good_request(book):
    """Each side has one sentence: what it moved, from which peer, in what time."""
    await book.append(prefill_story(), decode_story())
    assert sentences_of(book, DECODE) == [
        (
            f"Request {DECODE} on decode engine decode/0 loaded KV state (400 tokens, 2 MiB) from {PEER} in 12 ms,"
            " without trouble; it ended (stop) after 500 ms, deferred for 60 ms of that"
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
    """The sentence has peer, cause, action, the policy that decided, and the cost."""
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


async def test_an_engine_of_both_roles_is_named_without_one(book):
    """An engine of both roles is described without a role."""
    await book.add(source(41, "language", "both"), closed(DECODE))
    (sentence,) = sentences_of(book, DECODE)
    assert sentence.startswith(f"Request {DECODE} on engine language/0 ")
