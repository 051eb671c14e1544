"""A diagnosis of any log: it never fails, and the same facts give the same verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.badness import NO_SERVERS
from penstock.agent.diagnosis import RARE, diagnose, diagnosis_message
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import Event

from tests.support.agent.diagnosed import calm, facts_of

if TYPE_CHECKING:
    import random

KINDS = (*RARE, "deferral_end", "request_closed")
PEERS = ("", "a:1", "b:1", "c:1")
moments = st.integers(min_value=0, max_value=2**63)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Give an event with any numbers."""
    kind = draw(st.sampled_from(KINDS))
    told = Event(
        time_unix_nano=facts_of().now - draw(st.integers(0, 5000)) * 1_000_000_000,
        request_id=draw(st.sampled_from(["", "r-1", "r-2", "r-3"])),
        rehearsal=draw(st.booleans()),
    )
    body: Any = getattr(told, kind)
    body.SetInParent()
    for field in body.DESCRIPTOR.fields:
        if field.is_repeated or draw(st.booleans()):
            continue
        if field.enum_type is not None:
            setattr(body, field.name, draw(st.integers(0, 12)))
        elif field.name in {"peer", "caused_by_peer"}:
            getattr(body, field.name).address = draw(st.sampled_from(PEERS))
        elif field.name.endswith("_nano"):
            setattr(body, field.name, draw(moments) // 2)
    return told


@given(st.lists(events(), max_size=30), st.randoms(use_true_random=False))
def test_any_log_has_one_verdict(log: list[Event], shuffle: random.Random) -> None:
    """It does not depend on how often it is asked; it has a sentence, and an order by harm."""
    facts = facts_of(log)
    verdict = diagnose(facts)
    assert verdict.sentence
    assert diagnose(facts_of(log)) == verdict
    # What has ended comes last, then what is no server; who cannot see leads; a cause has its effects' harm, too.
    ranks = [
        (
            bool(cause.until),
            cause.kind != "agent_blind",
            cause.peer in NO_SERVERS,
            -max(each.harm for each in (cause, *cause.effects)),
        )
        for cause in verdict.causes
    ]
    assert ranks == sorted(ranks)
    assert all(cause.harm >= 0 for cause in verdict.causes)
    message = diagnosis_message(verdict, facts)
    assert admin.Diagnosis.FromString(message.SerializeToString()) == message
    mixed = list(log)
    shuffle.shuffle(mixed)
    kinds = sorted((cause.kind, cause.peer) for cause in verdict.causes)
    assert sorted((cause.kind, cause.peer) for cause in diagnose(facts_of(mixed)).causes) == kinds


@given(st.integers(0, 40))
def test_a_quiet_log_has_nothing_wrong(number: int) -> None:
    """Whatever part of it there is, beside one request."""
    log = calm()[: 2 + number]
    assert not diagnose(facts_of(log)).causes
