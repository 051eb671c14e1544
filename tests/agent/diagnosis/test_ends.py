"""What has ended leaves the headline, and is told in the past tense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent import limits
from penstock.agent.diagnosis import VerdictKind
from penstock.agent.diagnosis.facts import ended_at
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.agent.batches import event
from tests.support.agent.diagnosed import SECOND, at, calm, decided, failed, rebalances, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.events_pb2 import Event

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


def test_an_engine_that_is_not_back_lasts() -> None:
    """However long ago it went."""
    gone = admin.Engine(key={"server": "decode", "engine": "0"}, role=common.ROLE_DECODE)
    (cause, *_) = verdict_of([*calm(), *_lost("engine-core")(400)], engines=[gone]).causes
    assert (cause.kind, cause.until) == ("engine_lost", 0)


def test_an_incompatible_peer_that_nobody_tries_lasts() -> None:
    """Only a load that went well shows that it has ended."""
    (cause,) = (each for each in verdict_of(_incompatible(400)).causes if each.kind == "incompatible_peer")
    assert cause.until == 0
