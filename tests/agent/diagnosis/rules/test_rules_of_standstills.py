"""Rules about what should go on in an engine and does not, by the stalls that the agent has found."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.diagnosis import Confidence, Held, VerdictKind
from penstock.agent.diagnosis.rules.scheduler import SCHEDULER_KINDS
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import snapshot_pb2 as snapshots

from tests.support.agent.batches import PEER, event
from tests.support.agent.diagnosed import (
    DECODE,
    at,
    calm,
    closed,
    decided,
    engine,
    failed,
    rebalances,
    verdict_of,
    waited,
)

OTHER = EngineKey("other", "0")


def _stall(kind: str, *, ago: float = 60, count: int = 1, peer: str = "") -> admin.Stall:
    stall = admin.Stall(kind=kind, count=count, peer=peer, sentence=f"what is {kind}")
    stall.since.FromNanoseconds(at(ago))
    return stall


@pytest.mark.parametrize(
    "kind",
    [
        "load_not_started",
        "load_missing",
        "call_stuck",
        "step_stuck",
        "thread_dead",
        "worker_silent",
        "rebalance_overdue",
        "rebalance_unfinished",
    ],
)
def test_each_stall_is_a_cause(kind: str) -> None:
    """Its kind is the word of the stall, and its sentence the agent's own; the next command names the engine."""
    verdict = verdict_of(calm(), engines=[engine(stalls=[_stall(kind)])])
    assert [cause.kind for cause in verdict.causes] == [kind]
    cause = verdict.causes[0]
    assert cause.sentence == f"engine decode/0: what is {kind}"
    assert (cause.engines, cause.confidence) == ((DECODE,), Confidence.CERTAIN)
    assert cause.harm > 0
    assert cause.alternatives
    assert any("decode/0" in command or "deferred" in command for command in cause.commands)


@pytest.mark.parametrize("connected", [True, False])
def test_a_stall_that_is_over_is_told_as_ended(connected: bool) -> None:
    """Below what lasts, without a remedy; that its engine ended with it is said."""
    stall = _stall("call_stuck", ago=330)
    stall.until.FromNanoseconds(at(30))
    one = engine(connected=connected, said_goodbye=not connected, ended_stalls=[stall])
    one.last_seen.FromNanoseconds(at(30))
    verdict = verdict_of(calm(), engines=[one])
    (cause,) = verdict.causes
    assert (cause.until, cause.since) == (at(30), at(330))
    assert cause.sentence == "engine decode/0: what is call_stuck; ended 30s ago"
    facts = [each.fact for each in cause.evidence]
    assert facts == ["for 5m", *([] if connected else ["engine decode/0 said goodbye and ended then"])]
    assert cause.commands == ("agentctl describe engine decode/0",)
    expected = VerdictKind.NOTHING_WRONG if connected else VerdictKind.CANNOT_TELL
    assert verdict.answer == expected
    assert verdict.sentence.endswith("; 1 cause ended, the last one 30s ago")


def test_a_step_that_does_not_end_stands_under_what_holds_it_up() -> None:
    """A call of its own engine, and of no other."""
    stalls = [_stall("step_stuck", ago=90), _stall("call_stuck", ago=90)]
    other = engine("other", stalls=[_stall("step_stuck", ago=90)])
    causes = verdict_of(calm(), engines=[engine(stalls=stalls), other]).causes
    assert {(each.kind, str(each.engines[0])) for each in causes} == {
        ("call_stuck", "decode/0"),
        ("step_stuck", "other/0"),
    }
    (cause,) = (each for each in causes if each.kind == "call_stuck")
    assert [each.kind for each in cause.effects] == ["step_stuck"]


def test_a_step_that_stood_still_before_has_a_cause_of_its_own() -> None:
    """One call explains no step that had ended when it began."""
    step, call = _stall("step_stuck", ago=580), _stall("call_stuck", ago=100)
    step.until.FromNanoseconds(at(540))
    call.until.FromNanoseconds(at(60))
    causes = verdict_of(calm(), engines=[engine(ended_stalls=[step, call])]).causes
    assert {each.kind for each in causes} == {"step_stuck", "call_stuck"}
    assert not verdict_of(calm(), since=50, engines=[engine(ended_stalls=[step, call])]).causes


def test_a_worker_that_stands_still_is_not_lost_beside() -> None:
    """The agent loses sight of it, as it says nothing: that is one thing; another engine's worker is another."""
    losses = [
        (key, "decode", event("source_lost", time_ns=at(50), process="worker")) for key in (DECODE, OTHER)
    ]
    standing = engine(stalls=[_stall("worker_silent", ago=90)])
    causes = verdict_of(calm(), engines=[standing, engine("other")], more=losses).causes
    assert [each.kind for each in causes] == ["worker_silent", "process_lost"]
    assert [each.kind for each in causes[0].effects] == ["process_lost"]


def test_a_newer_stall_is_left_to_doctor() -> None:
    """An agent that names another kind is read all the same."""
    assert not verdict_of(calm(), engines=[engine(stalls=[_stall("of_tomorrow")])]).causes


def test_a_wait_that_never_started_is_not_the_peer_s() -> None:
    """Of five requests that wait for a peer no load was begun for two; the others are the peer's."""
    row = {"reason": common.DEFERRAL_REASON_REMOTE_KV, "peer": {"address": PEER}, "count": 5}
    deferred = [{**row, "oldest_start_time_unix_nano": at(60)}]
    hanging = engine(deferred=deferred, stalls=[_stall("load_not_started", count=2, peer=PEER)])
    causes = {cause.kind: cause for cause in verdict_of(calm(), engines=[hanging]).causes}
    assert {kind: cause.requests for kind, cause in causes.items()} == {"load_not_started": 2, "peer_slow": 3}
    assert causes["load_not_started"].peer == PEER
    alone = engine(deferred=deferred, stalls=[_stall("load_not_started", count=5, peer=PEER)])
    assert [cause.kind for cause in verdict_of(calm(), engines=[alone]).causes] == ["load_not_started"]


def test_a_worker_that_stands_comes_before_who_waits_for_it() -> None:
    """Requests wait for peers in an engine whose worker moves nothing."""
    row = {"reason": common.DEFERRAL_REASON_REMOTE_KV, "peer": {"address": PEER}, "count": 3}
    deferred = [{**row, "oldest_start_time_unix_nano": at(60)}]
    still = engine(deferred=deferred, stalls=[_stall("worker_silent", ago=60)])
    causes = verdict_of(calm(), engines=[still]).causes
    assert [cause.kind for cause in causes] == ["worker_silent", "peer_slow"]
    assert causes[0].evidence[1].fact == "3 requests wait in this engine now"


def test_a_dead_listener_comes_before_the_failures_of_its_readers() -> None:
    """Handshakes with its engine time out in others; the peer's failures are told after it."""
    bad = [failed(f"bad-{n}", 50, error_type=common.ERROR_TYPE_TIMEOUT) for n in range(3)]
    ends = [decided(f"bad-{n}", 50) for n in range(3)]
    dead = engine(
        "prefill", common.ROLE_PREFILL, facts={"side_channel": PEER}, stalls=[_stall("thread_dead")]
    )
    causes = verdict_of([*calm(), *bad, *ends], engines=[engine(), dead]).causes
    assert [cause.kind for cause in causes] == ["thread_dead", "peer_times_out"]
    assert causes[0].evidence[1].fact.startswith("in the engines that read from it: 3 requests failed")


def test_rebalances_that_stopped_are_told_once() -> None:
    """Where the ranks count their steps themselves, that is the better word."""
    serving = [waited("now", 60), closed("now", 60)]
    log = [*calm(), *serving, *rebalances(*range(700, 4000, 100), pause=0.1)]
    assert [cause.kind for cause in verdict_of(log).causes] == ["eplb_stopped"]
    stalled = engine(stalls=[_stall("rebalance_overdue")])
    assert [cause.kind for cause in verdict_of(log, engines=[stalled]).causes] == ["rebalance_overdue"]


@pytest.mark.parametrize(("ago", "confidence"), [(12, Confidence.POSSIBLE), (40, Confidence.CERTAIN)])
def test_a_worker_that_may_only_be_short_of_time(ago: int, confidence: Confidence) -> None:
    """Its silence is certain, and what it means is not at once."""
    (cause,) = verdict_of(calm(), engines=[engine(stalls=[_stall("worker_silent", ago=ago)])]).causes
    assert cause.confidence == confidence


def _bare(number: int) -> list[Any]:
    return [closed(f"bare-{n}", 60 + n, kv_role=common.ROLE_UNSPECIFIED) for n in range(number)]


def test_a_router_without_parameters_is_told_once() -> None:
    """By the requests that ended, else by the engine that counts those that came."""
    stalled = engine(stalls=[_stall("no_transfer_params", count=40)])
    told = verdict_of(_bare(6), engines=[stalled]).causes
    assert [(cause.kind, cause.requests) for cause in told] == [("no_transfer_parameters", 6)]
    early = verdict_of(calm(), engines=[stalled]).causes
    assert [(cause.kind, cause.requests) for cause in early] == [("no_transfer_parameters", 40)]


CAPACITY = snapshots.QUEUE_REASON_CAPACITY


def _queue(*waiting: tuple[int, int], running: int = 0, requests: int = 2) -> snapshots.SchedulerQueue:
    """Build a queue in which requests wait for blocks since 40 and 20 seconds."""
    return snapshots.SchedulerQueue(
        running=running,
        total_blocks=1000,
        free_blocks=5,
        waiting=[{"reason": reason, "count": count} for reason, count in waiting or [(CAPACITY, 2)]],
        requests=[
            {"request_id": f"w-{n}", "waiting": CAPACITY, "arrival_time_unix_nano": at(40 / (n + 1))}
            for n in range(requests)
        ],
    )


def _starved(ago: float = 60, leases_ago: float = 0, **fields: Any) -> admin.Engine:
    """Build an engine in which nothing runs, as leases have its cache."""
    leases = {"count": 4, "blocks": 960, "oldest_start_time_unix_nano": at(leases_ago or ago)}
    stalls = [_stall("no_capacity", ago=ago, count=2)]
    return engine(
        "prefill", common.ROLE_PREFILL, **{"leases": leases, "stalls": stalls, "queue": _queue(), **fields}
    )


PREFILL = EngineKey("prefill", "0")
_SCHEDULER_KINDS = ("no_capacity", "no_steps", "scheduler_paused", "steps_without_tokens")


def test_the_standstills_of_a_scheduler() -> None:
    """Each is tried below."""
    assert set(_SCHEDULER_KINDS) == SCHEDULER_KINDS


@pytest.mark.parametrize("kind", _SCHEDULER_KINDS)
def test_each_standstill_of_a_scheduler_is_a_cause(kind: str) -> None:
    """Its requests are those of the queue, each for as long as it has waited since then."""
    queue = _queue()
    standing = engine(stalls=[_stall(kind, count=2)], queue=queue)
    (cause,) = verdict_of(calm(), engines=[standing], queues={DECODE: queue}).causes
    assert (cause.kind, cause.requests, cause.confidence) == (kind, 2, Confidence.CERTAIN)
    assert cause.seconds == pytest.approx(40 + 20)
    assert cause.evidence[1].fact == "0 requests run; waiting: 2 for capacity"
    assert "agentctl get requests --queued" in cause.commands


@pytest.mark.parametrize(("ago", "confidence"), [(2, Confidence.POSSIBLE), (12, Confidence.CERTAIN)])
def test_an_engine_without_room_is_told_at_once(ago: float, confidence: Confidence) -> None:
    """As possible while busy readers may come within seconds."""
    (cause,) = verdict_of(calm(), engines=[_starved(ago)]).causes
    assert (cause.kind, cause.confidence) == ("no_capacity", confidence)
    assert cause.evidence[2].fact.startswith("leases hold 960 blocks of 4 requests, the oldest for")


def test_leases_that_nobody_reads_come_before_the_engine_without_room() -> None:
    """Once they are old they are the cause, and say what they do; in another engine they are not."""
    (cause,) = verdict_of(calm(), engines=[_starved(30, leases_ago=90)]).causes
    assert (cause.kind, [each.kind for each in cause.effects]) == ("leases_wait", ["no_capacity"])
    assert cause.sentence.endswith("; nothing runs there, and 2 requests wait for KV blocks")
    old = {"count": 1, "blocks": 10, "oldest_start_time_unix_nano": at(90)}
    young = {"count": 1, "blocks": 960, "oldest_start_time_unix_nano": at(10)}
    apart = verdict_of(calm(), engines=[_starved(30, leases=young), engine(leases=old)]).causes
    assert {each.kind for each in apart} == {"no_capacity", "leases_wait"}
    assert not any(each.effects for each in apart)


@pytest.mark.parametrize(
    ("holder", "kind"),
    [
        (snapshots.BLOCK_HOLDER_PINNED, "pinned_blocks"),
        (snapshots.BLOCK_HOLDER_ABORTED, "aborted_loads_hold_blocks"),
        (snapshots.BLOCK_HOLDER_SAVE, "saves_hold_blocks"),
    ],
)
def test_who_holds_most_is_the_cause(holder: Any, kind: str) -> None:
    """Of two holders the larger one; the other stands beside."""
    held = [
        Held(PREFILL, snapshots.HeldBlocks(holder=holder, blocks=700, oldest_start_time_unix_nano=at(50)))
    ]
    leases = {"count": 1, "blocks": 250, "oldest_start_time_unix_nano": at(90)}
    found = verdict_of(calm(), engines=[_starved(30, leases=leases)], held=held).causes
    by_kind = {each.kind: [effect.kind for effect in each.effects] for each in found}
    assert by_kind == {kind: ["no_capacity"], "leases_wait": []}


def test_a_call_that_does_not_return_comes_before_the_steps_that_do_not_begin() -> None:
    """One cause, and one effect."""
    stalls = [_stall("no_steps", ago=60, count=3), _stall("call_stuck", ago=60)]
    (cause,) = verdict_of(calm(), engines=[engine(stalls=stalls)]).causes
    assert (cause.kind, [each.kind for each in cause.effects]) == ("call_stuck", ["no_steps"])


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ([None], "what waits in the engines' own queues is not known"),
        ([_queue(), None], "what waits in the engines' own queues is not known"),
        ([snapshots.SchedulerQueue(total_blocks=10)], "none runs or waits in the engines' own queues"),
        ([_queue(running=1)], "1 request runs and 2 wait in the engines' own queues"),
    ],
)
def test_no_request_in_the_log(queues: list[snapshots.SchedulerQueue | None], words: str) -> None:
    """What waits in the queues is said as far as it is known of all."""
    engines = [engine(f"e{n}", queue=each) for n, each in enumerate(queues)]
    verdict = verdict_of(engines=engines)
    assert verdict.answer == VerdictKind.CANNOT_TELL
    assert verdict.sentence.endswith(words)
