"""Since when a cause lasts: its first sign in what was read, never later than its end or now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.diagnosis import Held, diagnose, diagnosis_message
from penstock.agent.diagnosis.facts import first_sign
from penstock.agent.model import PolicySource
from penstock.agent.parsing import parse_duration
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1 import snapshot_pb2 as snapshots

from tests.agent.diagnosis.test_properties import events as any_events
from tests.support.agent.batches import PEER, event
from tests.support.agent.diagnosed import (
    DECODE,
    NOW,
    SECOND,
    at,
    calm,
    closed,
    decided,
    engine,
    facts_of,
    failed,
    rebalances,
    verdict_of,
    waited,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.proto.v1.events_pb2 import Event

HASH = "0123456789abcdef"
_ago = st.integers(0, 5_000)


def _row(ago: float, **fields: Any) -> dict[str, Any]:
    return {"oldest_start_time_unix_nano": at(ago), **fields}


@st.composite
def _facts(draw: st.DrawFn) -> dict[str, Any]:
    """Give what facts hold beside the log, each at any time, also in what is to come."""
    when = st.integers(-100, 5_000)
    stall = admin.Stall(kind=draw(st.sampled_from(["step_stuck", "load_not_started", "no_transfer_params"])))
    stall.since.FromNanoseconds(at(draw(when)))
    one = engine(
        stalls=[stall],
        paused=draw(st.booleans()),
        in_sync=draw(st.booleans()),
        policy={"last_error": "no", "hash": HASH},
        leases={"count": 1, "blocks": 1, **_row(draw(when))},
        deferred=[
            _row(draw(when), reason=common.DEFERRAL_REASON_REMOTE_KV, peer={"address": "a:1"}, count=1)
        ],
    )
    one.pause.since.FromNanoseconds(at(draw(when)))
    away = engine("prefill", connected=False)
    away.last_seen.FromNanoseconds(at(draw(when)))
    drill = admin.Drill(id="d1", engines=[{"key": {"server": "decode", "engine": "0"}}])
    drill.started.FromNanoseconds(at(draw(when)))
    suspect = admin.Suspect(request_id="r-1", reasons=[events.SUSPECT_REASON_NAN])
    suspect.seen.FromNanoseconds(at(draw(when)))
    held = snapshots.HeldBlocks(holder=snapshots.BLOCK_HOLDER_PINNED, blocks=1, **_row(draw(when)))
    policy = PolicySource("harsh", 1, "mallory@host", at(draw(when)), ("kvLoadFailure.action",))
    return {
        "engines": [one, away],
        "drills": [drill],
        "suspects": [suspect],
        "held": [Held(DECODE, held)],
        "policies": {(DECODE, HASH): (policy,)},
        "policy_changes": {"harsh": at(draw(when))},
    }


@given(st.lists(any_events(), max_size=20), _facts())
def test_a_cause_begins_before_it_ends(log: list[Event], fields: dict[str, Any]) -> None:
    """And not after now, whatever the clocks of engines and orders say."""
    facts = facts_of(log, **fields)
    verdict = diagnose(facts)
    assert verdict.causes
    for cause in verdict.causes:
        assert 0 <= cause.since <= (cause.until or facts.now)
    message = diagnosis_message(verdict, facts)
    assert admin.Diagnosis.FromString(message.SerializeToString()) == message


@given(
    st.lists(any_events(), max_size=20), _facts(), st.integers(1, 4_000), st.sampled_from([0.0, 0.4, 3600.0])
)
def test_the_next_command_looks_at_the_window(
    log: list[Event], fields: dict[str, Any], since: float, baseline: float
) -> None:
    """At all of it, and at no time that was not looked at."""
    facts = facts_of(log, since=since, baseline=baseline, **fields)
    for cause in diagnose(facts).causes:
        for text in re.findall(r"--since (\S+)", " ".join(cause.commands)):
            assert since <= parse_duration(text).total_seconds() < since + baseline + 1


@given(st.lists(_ago), st.lists(_ago))
def test_the_first_sign(present: list[int], before: list[int]) -> None:
    """It is one of those that there are, the earliest of the window or earlier."""
    found = first_sign(facts_of(), map(at, present), map(at, before))
    if not present:
        assert found == 0
    else:
        assert found in {at(each) for each in (*present, *before)}
        assert found <= at(max(present))


def test_the_time_before_counts_up_to_a_pause() -> None:
    """A minute, or three times the usual pause; where there are always some signs, only the latter."""
    facts = facts_of()
    assert first_sign(facts, [at(5)], [at(30), at(80), at(200)]) == at(80)
    assert first_sign(facts, [at(5)], [at(30)], 0) == at(5)
    assert first_sign(facts, map(at, (100, 200, 300)), map(at, (450, 800))) == at(450)


def _leases(*ago: float) -> list[Event]:
    return [
        event("lease_closed", f"p-{each}", time_ns=at(each), ending=events.LEASE_ENDING_EXPIRED, blocks=1)
        for each in ago
    ]


def _failures(*ago: float, **body: Any) -> list[Event]:
    return [failed(f"bad-{each}", each, **body) for each in ago]


def _decided(*ago: float, **body: Any) -> list[Event]:
    return [decided(f"bad-{each}", each, **body) for each in ago]


def _gated(ago: Iterable[int], seconds: float) -> list[Event]:
    gates = {"queue_nano": int(seconds * 1e9)}
    return [closed(f"r-{each}", each, gates=gates) for each in ago]


def _bare(ago: Iterable[int]) -> list[Event]:
    return [closed(f"r-{each}", each, kv_role=common.ROLE_UNSPECIFIED) for each in ago]


def _routed(ago: Iterable[int]) -> list[Event]:
    return [closed(f"r-{each}", each) for each in ago]


@pytest.mark.parametrize(
    ("kind", "log", "since"),
    [
        ("peer_refuses", _failures(5, 70, 590, 610, 660, 1500), 660),
        ("peer_refuses", _failures(5, 70), 70),
        ("peer_slow", [waited(f"r-{ago}", ago, 3.0) for ago in range(580, 640, 10)], 630),
        # When the wait began, and not when it ended.
        ("peer_slow", [waited(f"r-{n}", 20, 11.0) for n in range(4)], 31),
        ("incompatible_peer", _failures(5, 595, 605, error_type=common.ERROR_TYPE_INCOMPATIBLE), 605),
        ("leases_expire", _leases(5, 10, 15, 20, 700), 20),
        ("late_reads", _failures(5, 650, mode=common.FAILURE_MODE_LATE_READ), 5),
        ("engine_lost", [event("source_lost", time_ns=at(50), process="engine-core")], 50),
        ("eplb_stalls", rebalances(60, 120, 2000), 120),
        ("eplb_fails", rebalances(60, pause=0.01, ok=False), 60),
        ("eplb_stopped", rebalances(*range(700, 4000, 150), pause=0.01), 700),
        ("recompute_budget_exhausted", _decided(5, 6, 7, decided_by=common.DECIDED_BY_BUDGET), 7),
        ("recompute_storm", _decided(*range(5, 20), outcome=common.OUTCOME_RECOMPUTED), 19),
        ("first_tokens_late", [*_gated(range(60, 70), 2.0), *_gated(range(900, 920), 0.1)], 69),
        ("no_transfer_parameters", [*_bare(range(1, 900, 10)), *_routed(range(900, 3000, 10))], 891),
        # One of them among others before is no beginning.
        ("no_transfer_parameters", [*_bare([*range(1, 300, 10), 1500]), *_routed(range(601, 3000, 10))], 291),
    ],
)
def test_the_first_sign_in_the_log(kind: str, log: list[Event], since: float) -> None:
    """In the window and, where it went on without a pause, before it."""
    (cause,) = (each for each in verdict_of([*calm(), *log]).causes if each.kind == kind)
    assert cause.since == at(since)


def _paused() -> dict[str, Any]:
    one = engine(paused=True)
    one.pause.since.FromNanoseconds(at(900))
    return {"engines": [one]}


def _drill() -> dict[str, Any]:
    drill = admin.Drill(id="d1", engines=[{"key": {"server": "decode", "engine": "0"}}])
    drill.started.FromNanoseconds(at(900))
    return {"drills": [drill]}


def _stalled() -> dict[str, Any]:
    stall = admin.Stall(kind="step_stuck", count=1)
    stall.since.FromNanoseconds(at(900))
    return {"engines": [engine(stalls=[stall])]}


def _away() -> dict[str, Any]:
    gone = engine("prefill", connected=False)
    gone.last_seen.FromNanoseconds(at(900))
    return {"engines": [engine(), gone]}


def _suspect() -> dict[str, Any]:
    suspects = [admin.Suspect(request_id=f"r-{ago}", reasons=[events.SUSPECT_REASON_NAN]) for ago in (5, 900)]
    for suspect, ago in zip(suspects, (5, 900), strict=True):
        suspect.seen.FromNanoseconds(at(ago))
    return {"suspects": suspects}


def _weights() -> dict[str, Any]:
    suspect = admin.Suspect(
        request_id="d-1",
        reasons=[events.SUSPECT_REASON_OTHER_WEIGHTS],
        key={"server": "decode", "engine": "0"},
        peer={"address": PEER},
    )
    suspect.seen.FromNanoseconds(at(900))
    pair = admin.Pair(
        key={"server": "decode", "engine": "0"}, peer={"address": PEER}, weights=admin.PAIR_WEIGHTS_DIFFER
    )
    return {"suspects": [suspect], "pairs": [pair]}


def _held() -> dict[str, Any]:
    row = snapshots.HeldBlocks(holder=snapshots.BLOCK_HOLDER_SAVE, blocks=1, **_row(900))
    return {"held": [Held(DECODE, row)]}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("paused", _paused),
        ("drill", _drill),
        ("step_stuck", _stalled),
        ("engine_away", _away),
        ("answers_suspect", _suspect),
        ("weights_differ", _weights),
        ("saves_hold_blocks", _held),
        ("leases_wait", lambda: {"engines": [engine(leases={"count": 1, "blocks": 2, **_row(900)})]}),
    ],
)
def test_what_stands_has_its_own_time(kind: str, fields: Callable[[], dict[str, Any]]) -> None:
    """That of the order, the stall or the snapshot, however short the window is."""
    (cause,) = verdict_of(calm(), **fields()).causes
    assert (cause.kind, cause.since) == (kind, at(900))


def test_a_policy_began_when_it_was_changed() -> None:
    """And not with the first request that it failed."""
    policy = PolicySource("harsh", 1, "mallory@host", at(300), ("kvLoadFailure.action",))
    ends: dict[str, Any] = {"decided_by": common.DECIDED_BY_POLICY, "policy_hash": HASH}
    fields: dict[str, Any] = {
        "engines": [engine(policy={"hash": HASH, "kv_action": "fail"})],
        "policies": {(DECODE, HASH): (policy,)},
    }
    log = [*calm(), *_failures(60, 61), *_decided(60, 61, **ends)]
    cause = next(each for each in verdict_of(log, **fields).causes if each.kind == "policy_fails_loads")
    assert cause.since == at(300)


def test_a_policy_that_is_refused_began_with_the_refusal() -> None:
    """Where the log has it."""
    refusing = engine(in_sync=False, policy={"last_error": "no such field"})
    refusal = event("policy_applied", time_ns=at(900), accepted=False, error="no such field")
    for log, since in (([refusal], at(900)), ([], 0)):
        (cause,) = verdict_of([*calm(), *log], engines=[refusing]).causes
        assert (cause.kind, cause.since) == ("policy_refused", since)


def test_requests_that_wait_now_began_to_wait_then() -> None:
    """What hangs has no other sign."""
    row = _row(30, reason=common.DEFERRAL_REASON_REMOTE_KV, peer={"address": "b:1"}, count=4)
    (cause,) = verdict_of(calm(), engines=[engine(deferred=[row])]).causes
    assert (cause.kind, cause.since) == ("peer_slow", NOW - 30 * SECOND)
