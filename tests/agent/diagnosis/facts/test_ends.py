"""What has ended leaves the headline, and is told in the past tense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent import limits
from penstock.agent.diagnosis import VerdictKind
from penstock.agent.diagnosis.facts import ended_at
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.agent.batches import PEER, event
from tests.support.agent.diagnosed import (
    SECOND,
    at,
    calm,
    decided,
    engine,
    failed,
    rebalances,
    verdict_of,
    waited,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.events_pb2 import Event

_PEER: Final = "10.0.0.8:5600"
_times = st.lists(st.integers(0, 4_000 * SECOND), max_size=20)


@given(_times, st.integers(0, 1_000 * SECOND))
def test_an_end_is_the_last_sign(times: list[int], later: int) -> None:
    """After a minute at least; more time without a sign never makes it last again, and a sign now always does."""
    now = max(times, default=0) + later
    end = ended_at(times, now)
    assert end in {0, max(times, default=0)}
    if end:
        assert now - end >= limits.QUIET_SECONDS * SECOND
        assert ended_at(times, now + 1) == end
    assert ended_at([*times, now], now) == 0


def test_a_pause_that_is_usual_is_no_end() -> None:
    """What comes every five minutes goes on two minutes after the last time."""
    rare = [each * 300 * SECOND for each in range(1, 6)]
    assert ended_at(rare, rare[-1] + 120 * SECOND) == 0
    assert ended_at(rare, rare[-1] + 900 * SECOND) == rare[-1]


def _leases(ago: float) -> list[Event]:
    return [
        event("lease_closed", f"p-{n}", time_ns=at(ago), ending=events.LEASE_ENDING_EXPIRED, blocks=1)
        for n in range(5)
    ]


def _late_reads(ago: float) -> list[Event]:
    return [failed("p-1", ago, "unknown", mode=common.FAILURE_MODE_LATE_READ)]


def _lost(process: str) -> Callable[[float], list[Event]]:
    return lambda ago: [event("source_lost", time_ns=at(ago), process=process)]


def _incompatible(ago: float) -> list[Event]:
    factors = {"factors": ["dtype"]}
    return [failed("bad", ago, error_type=common.ERROR_TYPE_INCOMPATIBLE, incompatibility=factors)]


def _limited(ago: float) -> list[Event]:
    return [decided(f"bad-{n}", ago, decided_by=common.DECIDED_BY_BUDGET) for n in range(4)]


def _recomputed(ago: float) -> list[Event]:
    return [decided(f"bad-{n}", ago, common.OUTCOME_RECOMPUTED) for n in range(12)]


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ("leases_expire", _leases),
        ("late_reads", _late_reads),
        ("engine_lost", _lost("engine-core")),
        ("process_lost", _lost("worker")),
        ("incompatible_peer", _incompatible),
        ("recompute_budget_exhausted", _limited),
        ("recompute_storm", _recomputed),
        ("eplb_stalls", rebalances),
        ("eplb_fails", lambda ago: rebalances(ago, pause=0.01, ok=False)),
    ],
)
def test_a_cause_that_has_ended(kind: str, log: Callable[[float], list[Event]]) -> None:
    """It lasts just after its last sign; minutes later it has ended then, and "nothing is wrong now" is the headline."""
    lasting = {each.kind: each for each in verdict_of([*calm(), *log(5)]).causes}
    assert lasting[kind].until == 0
    verdict = verdict_of([*calm(), *log(200)])
    ended = {each.kind: each for each in verdict.causes}
    assert ended[kind].until == at(200)
    assert ended[kind].sentence.endswith("; ended 3m ago")
    assert verdict.answer == VerdictKind.NOTHING_WRONG
    assert verdict.sentence.startswith("nothing is wrong now; ")


@pytest.mark.parametrize(("ago", "lasts"), [(5, True), (200, False)])
def test_answers_that_may_be_wrong(ago: float, *, lasts: bool) -> None:
    """They end with the newest of them."""
    suspect = admin.Suspect(request_id="r-1", reasons=[events.SUSPECT_REASON_NAN])
    suspect.seen.FromNanoseconds(at(ago))
    (cause,) = verdict_of(calm(), suspects=[suspect]).causes
    assert (cause.kind, cause.until) == ("answers_suspect", 0 if lasts else at(ago))


@pytest.mark.parametrize(("peer", "below"), [(PEER, ["peer_corrupts"]), ("10.0.0.9:5600", [])])
def test_wrong_answers_and_the_peer_that_seems_to_corrupt(peer: str, below: list[str]) -> None:
    """What was asked for was overwritten: that the peer sends something else is an effect. Another peer's is its own cause."""
    suspect = admin.Suspect(
        request_id="r-1", reasons=[events.SUSPECT_REASON_MISMATCH], peer={"address": PEER}
    )
    suspect.seen.FromNanoseconds(at(5))
    bad = [failed(f"bad-{n}", 5, peer, error_type=common.ERROR_TYPE_CORRUPT) for n in range(3)]
    first, *others = verdict_of([*calm(), *bad], suspects=[suspect]).causes
    assert first.kind == "answers_suspect"
    assert [each.kind for each in first.effects] == below
    assert [each.kind for each in others] == ([] if below else ["peer_corrupts"])


def test_an_engine_that_is_not_back_lasts() -> None:
    """However long ago it went."""
    gone = admin.Engine(key={"server": "decode", "engine": "0"}, role=common.ROLE_DECODE)
    (cause, *_) = verdict_of([*calm(), *_lost("engine-core")(400)], engines=[gone]).causes
    assert (cause.kind, cause.until) == ("engine_lost", 0)


def test_an_incompatible_peer_that_nobody_tries_lasts() -> None:
    """Only a load that went well shows that it has ended."""
    (cause,) = (each for each in verdict_of(_incompatible(400)).causes if each.kind == "incompatible_peer")
    assert cause.until == 0


@pytest.mark.parametrize(
    ("since", "good", "ended"),
    [
        # Three loads that went well are enough after a minute; one is after twice as long.
        (70, (30, 20, 10), True),
        (70, (30, 20), False),
        (119, (30,), False),
        (125, (30,), True),
        # Nobody has tried it since, and the same engine has loaded well from others.
        (500, (), True),
        # Of what went wrong every 60 seconds, three of its pauses must have passed, or six.
        (200, (30, 20, 10), True),
        (200, (30,), False),
    ],
)
def test_a_peer_ends_with_loads_that_go_well(since: float, good: tuple[float, ...], *, ended: bool) -> None:
    """And a peer of little traffic does with one, after a longer quiet time."""
    every = 60 if since == 200 else 1
    log = [*(failed(f"bad-{n}", since + n * every, _PEER) for n in range(4))]
    log += [waited(f"good-{ago}", ago, peer=_PEER) for ago in good]
    (cause,) = verdict_of([*calm(), *log]).causes
    assert cause.until == (at(since) if ended else 0)


def _going_on() -> admin.Engine:
    row = {"channel": common.CHANNEL_KV, "peer": {"address": _PEER}, "count": 1}
    return engine(in_flight=[row])


@pytest.mark.parametrize(
    ("since", "more", "fields", "says"),
    [
        (200, (), {}, "refused connections, and was not tried in the 3m since: 2 failures"),
        # Just now, or tried again without a success: the present tense is true.
        (5, (), {}, "refuses connections: 2 failures"),
        (200, (waited("tried", 20, peer=_PEER, ending=common.DEFERRAL_ENDING_ABORTED),), {}, "refuses connections: 2 failures"),
        (200, (), {"engines": [_going_on()]}, "refuses connections: 2 failures"),
        # The wait of a request whose load failed is part of its failure.
        (200, (waited("bad-0", 199.9, peer=_PEER),), {}, "refused connections, and was not tried in the 3m since: 2 failures"),
    ],
)  # fmt: skip
def test_a_peer_that_nobody_tries(
    since: float, more: tuple[Event, ...], fields: dict[str, Any], says: str
) -> None:
    """Whether it still fails is not known: its trouble is not claimed to go on, and has ended where others are read instead."""
    log = [failed(f"bad-{n}", since + n, _PEER) for n in range(2)]
    (cause,) = verdict_of([*calm(), *log, *more], **fields).causes
    ended = "not tried" in says
    assert cause.sentence == f"peer {_PEER} {says}" + ("; ended 3m ago" if ended else "")
    assert cause.until == (at(since) if ended else 0)
    (alone,) = verdict_of([*log, *more], **fields).causes
    assert (alone.sentence, alone.until) == (f"peer {_PEER} {says}", 0)


_OTHERS = tuple(waited(f"other-{ago}", ago, peer="10.0.9.9:5600") for ago in (30, 20, 10))
_ORDERED = admin.Quarantine(key={"engine": "0"}, peer={"address": _PEER}, author="ana", reason="looking")


@pytest.mark.parametrize(
    ("since", "more", "fields", "ended"),
    [
        (200, _OTHERS, {}, True),
        # Too few, too early, or something keeps its readers from it.
        (200, _OTHERS[1:], {}, False),
        # Its reader has been stopped meanwhile, or forgotten, or only lost.
        (200, (), {"engines": [engine("another")]}, True),
        (200, (), {"engines": [engine(connected=False, said_goodbye=True)]}, True),
        (200, (), {"engines": [engine(connected=False)]}, False),
        (50, _OTHERS, {}, False),
        (200, _OTHERS, {"quarantines": [_ORDERED]}, False),
        (200, (*_OTHERS, waited("tried", 20, peer=_PEER, ending=common.DEFERRAL_ENDING_ABORTED)), {}, False),
    ],
)
def test_a_peer_of_which_the_router_has_let_go(
    since: float, more: tuple[Event, ...], fields: dict[str, Any], *, ended: bool
) -> None:
    """Its readers load well from others, and nobody tries it: its trouble has ended."""
    log = [failed(f"bad-{n}", since + n, _PEER) for n in range(2)]
    found = {each.kind: each for each in verdict_of([*log, *more], **fields).causes}
    assert found["peer_refuses"].until == (at(since) if ended else 0)
