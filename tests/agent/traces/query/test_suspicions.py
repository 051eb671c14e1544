"""Which answers may be wrong, from what the journal says about a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.traces.query.suspicions import suspicions
from penstock.agent.traces.spans import EventEntry, RequestFacts
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.agent.batches import event, transfer_failure
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    PREFILL,
    PREFILL_CORE,
    closed_decode,
    outcome,
)

LATE, FAILED, MISMATCH, NAN, OTHER = (
    events.SUSPECT_REASON_LATE_READ,
    events.SUSPECT_REASON_FAILED_READ,
    events.SUSPECT_REASON_MISMATCH,
    events.SUSPECT_REASON_NAN,
    events.SUSPECT_REASON_OTHER_WEIGHTS,
)
ABORTED = {"kind": common.OUTCOME_ABORTED, "decided_by": common.DECIDED_BY_VLLM}


def late_read() -> EventEntry:
    """Return what the owner of the blocks reports."""
    return EventEntry(
        PREFILL_CORE,
        transfer_failure(
            PREFILL,
            mode=common.FAILURE_MODE_LATE_READ,
            error_type=common.ERROR_TYPE_EVICTED,
            direction=common.DIRECTION_SEND,
        ),
    )


def failed(mode: int = common.FAILURE_MODE_TRANSFER, **fields: Any) -> EventEntry:
    """Return a failed read of the decode side."""
    body = {"direction": common.DIRECTION_RECEIVE, "error_type": common.ERROR_TYPE_REMOTE_RESET, **fields}
    return EventEntry(DECODE_WORKER, transfer_failure(DECODE, mode=mode, **body))


def nan() -> EventEntry:
    """Return what an engine says of NaNs."""
    told = event("answer_suspected", DECODE, reason=NAN, nans_in_logits=7)
    return EventEntry(DECODE_CORE, told)


def reasons(*entries: EventEntry, late: bool = False, **closing: Any) -> list[int]:
    """Return the reasons for a request that ended with *closing*."""
    facts = RequestFacts.of(DECODE, [*entries, EventEntry(DECODE_CORE, closed_decode(**closing))])
    return sorted(each.reason for each in suspicions(facts, [late_read()] if late else []))


def done(kind: int = common.OUTCOME_RECOMPUTED, **fields: Any) -> EventEntry:
    """Return what was done about a failed load; nothing was kept."""
    return EventEntry(DECODE_CORE, outcome(DECODE, kind, **{"tokens_kept": 0, **fields}))


@pytest.mark.parametrize(
    ("entries", "late", "closing", "expected"),
    [
        ((), False, {}, []),
        ((), True, {}, [LATE]),
        ((), True, {"finish_reason": "error"}, []),
        ((), True, {"output_tokens": 0}, []),
        # Its prompt was cached: it told the owner that it needs nothing.
        ((), True, {"external_cached_tokens": 0}, []),
        ((done(),), True, {}, []),
        # A part was kept.
        ((done(tokens_kept=100),), True, {}, [LATE]),
        ((failed(),), False, {}, [FAILED]),
        ((failed(),), False, {"finish_reason": "abort"}, []),
        ((failed(), done()), False, {}, []),
        ((failed(), done(common.OUTCOME_FAILED)), False, {}, []),
        ((failed(), done(**ABORTED)), False, {}, [FAILED]),
        ((failed(common.FAILURE_MODE_HANDSHAKE),), False, {}, []),
        ((failed(common.FAILURE_MODE_NOTIFICATION),), False, {}, []),
        ((failed(error_type=common.ERROR_TYPE_CORRUPT),), False, {}, [MISMATCH]),
        ((failed(error_type=common.ERROR_TYPE_CORRUPT), done()), False, {}, []),
        # A policy that only observes: the blocks are used, and no load ends.
        ((failed(error_type=common.ERROR_TYPE_CORRUPT, used=True),), False, {}, [MISMATCH]),
        ((failed(error_type=common.ERROR_TYPE_CORRUPT, used=True),), False, {"finish_reason": "abort"}, []),
        ((failed(used=True),), False, {}, []),
        ((failed(error_type=common.ERROR_TYPE_CORRUPT, channel=common.CHANNEL_EC),), False, {}, [MISMATCH]),
        ((failed(channel=common.CHANNEL_EC),), False, {}, []),
        ((nan(),), False, {}, [NAN]),
        ((nan(), failed()), True, {}, [LATE, FAILED, NAN]),
    ],
)
def test_reasons(
    entries: tuple[EventEntry, ...], late: bool, closing: dict[str, Any], expected: list[int]
) -> None:
    """Each reason once; none for an answer that was not delivered or was computed again."""
    assert reasons(*entries, late=late, **closing) == expected


def test_a_drill_is_marked() -> None:
    """A failure that a drill caused says so, unless a real one is beside it."""
    drilled = failed()
    drilled.event.rehearsal = True
    closing = EventEntry(DECODE_CORE, closed_decode())
    (alone,) = suspicions(RequestFacts.of(DECODE, [drilled, closing]))
    assert alone.rehearsal
    (both,) = suspicions(RequestFacts.of(DECODE, [drilled, failed(), closing]))
    assert not both.rehearsal


_ENTRIES = st.sampled_from(["late", "failed", "corrupt", "nan", "recomputed", "aborted"])
_MAKE = {
    "failed": failed,
    "corrupt": lambda: failed(error_type=common.ERROR_TYPE_CORRUPT),
    "nan": nan,
    "recomputed": done,
    "aborted": lambda: done(**ABORTED),
}


@given(
    st.lists(_ENTRIES, max_size=6, unique=True),
    st.sampled_from(["stop", "length", "abort", "error", ""]),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_the_order_of_entries_does_not_matter(
    names: list[str], finish_reason: str, output_tokens: int, random: Any
) -> None:
    """What is said depends on what happened, and an answer without a token is no suspect of the agent's own."""
    late = "late" in names
    entries = [_MAKE[name]() for name in names if name != "late"]
    shuffled = random.sample(entries, len(entries))
    closing = {"finish_reason": finish_reason, "output_tokens": output_tokens}
    found = reasons(*entries, late=late, **closing)
    assert found == reasons(*shuffled, late=late, **closing)
    assert len(found) == len(set(found))
    if not output_tokens or finish_reason in {"", "error"}:
        assert set(found) <= {NAN}


@pytest.mark.parametrize(
    ("entries", "closing", "expected"),
    [
        ((), {}, [OTHER]),
        ((), {"finish_reason": "error"}, []),
        ((), {"output_tokens": 0}, []),
        ((), {"external_cached_tokens": 0}, []),
        ((done(),), {}, []),
        ((nan(),), {}, [NAN, OTHER]),
    ],
)
def test_blocks_of_other_weights(entries: Any, closing: dict[str, Any], expected: list[int]) -> None:
    """Where the pair is known to differ, an answer that was delivered and computed from them is suspect."""
    facts = RequestFacts.of(DECODE, [*entries, EventEntry(DECODE_CORE, closed_decode(**closing))])
    found = suspicions(facts, weights=lambda _: "it read other weights")
    assert sorted(each.reason for each in found) == expected
    running = RequestFacts.of(DECODE, [nan()])
    assert OTHER not in [
        each.reason for each in suspicions(running, weights=lambda _: "it read other weights")
    ]


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (common.ADDRESS_OWNER_OTHER, "named q:1 (another engine)"),
        (common.ADDRESS_OWNER_UNSPECIFIED, "named q:1 (who is there is not known)"),
    ],
)
def test_blocks_of_another_engine_with_the_same_id(owner: int, words: str) -> None:
    """The engine knows which it has read, and which its request named."""
    told = event(
        "answer_suspected",
        DECODE,
        reason=events.SUSPECT_REASON_OTHER_ENGINE,
        peer={"address": "p:1"},
        named={"address": "q:1"},
        named_owner=owner,
    )
    facts = RequestFacts.of(DECODE, [EventEntry(DECODE_CORE, each) for each in (closed_decode(), told)])
    (found,) = suspicions(facts)
    assert found.reason == events.SUSPECT_REASON_OTHER_ENGINE
    assert words in found.evidence
