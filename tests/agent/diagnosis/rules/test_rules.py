"""Each rule of a diagnosis as a table: the log, and the cause that comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.diagnosis import Confidence, Held, VerdictKind, diagnose
from penstock.agent.model import EngineKey, PolicySource
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1 import snapshot_pb2 as snapshots

from tests.support.agent.batches import PEER, event
from tests.support.agent.diagnosed import (
    DECODE,
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
    from collections.abc import Iterable

    from penstock.proto.v1.events_pb2 import Event

OTHER = "10.0.0.8:5600"
HASH = "0123456789abcdef"
FAIL = PolicySource("harsh", 1, "mallory@host", at(300), ("kvLoadFailure.action",))


def _failures(error: int, mode: int = common.FAILURE_MODE_HANDSHAKE, **body: Any) -> list[Event]:
    told = [failed(f"bad-{n}", 60 + n, error_type=error, mode=mode, **body) for n in range(3)]
    return [*told, *(decided(f"bad-{n}", 60 + n, error_type=error) for n in range(3))]


ERRORS = [
    (common.ERROR_TYPE_REFUSED, "peer_refuses"),
    (common.ERROR_TYPE_REMOTE_RESET, "peer_resets"),
    (common.ERROR_TYPE_TIMEOUT, "peer_times_out"),
    (common.ERROR_TYPE_CORRUPT, "peer_corrupts"),
    (common.ERROR_TYPE_EVICTED, "peer_evicts"),
    (common.ERROR_TYPE_DECODE, "peer_speaks_otherwise"),
    (common.ERROR_TYPE_OTHER, "peer_fails"),
    (999, "peer_fails"),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_a_peer_that_fails(error: int, kind: str) -> None:
    """Its most frequent error says how; requests that vLLM failed are its harm."""
    cause = verdict_of([*calm(), *_failures(error)]).causes[0]
    assert (cause.kind, cause.peer, cause.engines) == (kind, PEER, (DECODE,))
    assert (cause.failed, cause.requests) == (3, 3)
    assert cause.evidence[0].before == "0 in 1h"
    assert any(PEER in command for command in cause.commands)


def test_an_address_that_is_another_engines() -> None:
    """It says whose the address is, and advises no quarantine: the engine there is healthy."""
    text = "Remote NIXL agent engine ID mismatch. Expected a1,received b2."
    bad = _failures(common.ERROR_TYPE_WRONG_ENGINE, error_text=text)
    itself = engine(facts={"kv_engine_id": "b2", "side_channel": "localhost:5600"})
    cause = verdict_of([*calm(), *bad], engines=[itself]).causes[0]
    assert cause.kind == "wrong_engine_at_address"
    assert "is the address of another engine than requests name" in cause.sentence
    assert any(each.fact.endswith("that answers there: the reading engine itself") for each in cause.evidence)
    assert not any("quarantine" in command for command in cause.commands)
    other = engine("prefill", common.ROLE_PREFILL, facts={"kv_engine_id": "b2", "side_channel": "10.0.0.9:1"})
    cause = verdict_of([*calm(), *bad], engines=[engine(), other]).causes[0]
    assert any(
        "engine prefill/0 that answers there: which advertises 10.0.0.9:1" in each.fact
        for each in cause.evidence
    )


def test_an_encoder_that_died() -> None:
    """The loss of the encoder is evidence of its failures, and no cause beside them."""
    encoder = EngineKey("encoder", "0")
    lost = event("source_lost", time_ns=at(50), process="engine-core")
    bad = [failed(f"bad-{n}", 55, channel=common.CHANNEL_EC) for n in range(2)]
    ends = [decided(f"bad-{n}", 55, channel=common.CHANNEL_EC) for n in range(2)]
    verdict = verdict_of(
        [*calm(), *bad, *ends],
        more=[(encoder, "encoder", lost)],
        engines=[engine(), engine("encoder", common.ROLE_ENCODER)],
    )
    assert [cause.kind for cause in verdict.causes] == ["encoder_fails"]
    assert "vanished" in verdict.causes[0].sentence


@pytest.mark.parametrize("awake", [False, True])
def test_a_peer_that_sleeps(awake: bool) -> None:
    """Sleep mode takes its KV caches from NIXL; who reads meanwhile, or just after, learns why it failed."""
    bad = [failed(f"bad-{n}", 55) for n in range(3)]
    prefill = EngineKey("prefill", "0")
    back = event("kv_caches_released", time_ns=at(50), restored=True, since_time_unix_nano=at(70))
    known = engine("prefill", common.ROLE_PREFILL, facts={"side_channel": PEER})
    if not awake:
        known.asleep_since.FromNanoseconds(at(70))
    verdict = verdict_of(
        [*calm(), *bad], more=[(prefill, "prefill", back)] if awake else [], engines=[engine(), known]
    )
    (cause,) = verdict.causes
    evidence = [each.fact for each in cause.evidence if each.fact.startswith("engine prefill/0 s")]
    if awake:
        assert evidence == [
            "engine prefill/0 slept for 20s and is back since 50s ago: peers shake hands with it again"
        ]
    else:
        assert evidence == ["engine prefill/0 sleeps since 70s ago: no peer can read from it until it wakes"]
    assert (" and sleeps: " in cause.sentence) == (not awake), cause.sentence


def test_what_an_encoder_does_that_does_not_answer() -> None:
    """By the address that its engine announces: its queue is evidence; of an address that no engine has, nothing is said."""
    bad = [
        failed(
            f"bad-{n}",
            55,
            channel=common.CHANNEL_EC,
            mode=common.FAILURE_MODE_PROBE,
            error_type=common.ERROR_TYPE_TIMEOUT,
        )
        for n in range(3)
    ]
    queue = {"running": 1, "waiting": [{"reason": 2, "count": 4, "oldest_start_time_unix_nano": at(20)}]}
    found = []
    for address in (PEER, "10.0.0.8:1"):
        encoder = engine("encoder", common.ROLE_ENCODER, facts={"ec_address": address}, queue=queue)
        (cause,) = verdict_of([*calm(), *bad], engines=[engine(), encoder]).causes
        assert cause.peer == PEER
        found.append([each.fact for each in cause.evidence if each.fact.startswith("engine encoder/0: ")])
    (one,), none = found
    assert "4 requests wait in its scheduler now, the oldest for 20 s" in one
    assert not none


def test_incompatible_halves() -> None:
    """The factor that differs is in the sentence; the engine behind the address is in the command."""
    bad = [
        failed(
            f"bad-{n}",
            60,
            error_type=common.ERROR_TYPE_INCOMPATIBLE,
            incompatibility={"factors": ["dtype"]},
        )
        for n in range(3)
    ]
    other = engine("upgraded", common.ROLE_PREFILL, facts={"side_channel": PEER})
    cause = verdict_of([*calm(), *bad, decided("bad-0", 60)], engines=[engine(), other]).causes[0]
    assert cause.kind == "incompatible_peer"
    assert "dtype" in cause.sentence
    assert cause.commands[0] == "agentctl diff engine decode/0 upgraded/0"
    assert cause.confidence == Confidence.CERTAIN


def test_a_peer_for_which_requests_wait() -> None:
    """It is slow against its own past; without failures."""
    cause = verdict_of([*calm(), *(waited(f"slow-{n}", 20 + n, 3.0) for n in range(6))]).causes[0]
    assert (cause.kind, cause.peer, cause.requests) == ("peer_slow", PEER, 6)
    assert cause.seconds == pytest.approx(6 * 2.99, rel=0.01)


def test_an_encoder_for_which_requests_wait() -> None:
    """It is slow against its own past, and is called an encoder."""
    of_encoder: dict[str, Any] = {
        "reason": common.DEFERRAL_REASON_ENCODER_CACHE,
        "channel": common.CHANNEL_EC,
    }
    before = [waited(f"old-{n}", 700 + 100 * n, **of_encoder) for n in range(30)]
    slow = [waited(f"slow-{n}", 20 + n, 3.0, **of_encoder) for n in range(6)]
    cause = verdict_of([*calm(), *before, *slow]).causes[0]
    assert (cause.kind, cause.peer, cause.requests) == ("encoder_slow", PEER, 6)
    assert cause.sentence.startswith(f"encoder {PEER}"), cause.sentence


def test_waits_that_always_scatter() -> None:
    """One of ten waits was as long before: the peer is as it was. Twice as many are a cause."""
    before = [waited(f"old-{n}", 700 + 10 * n, 0.01 if n % 12 else 3.0, OTHER) for n in range(240)]
    now = [waited(f"new-{n}", 20 + n, 0.01 if n % 12 else 3.0, OTHER) for n in range(120)]
    assert not verdict_of([*calm(), *before, *now]).causes
    worse = [waited(f"new-{n}", 20 + n, 0.01 if n % 4 else 3.0, OTHER) for n in range(120)]
    assert [cause.kind for cause in verdict_of([*calm(), *before, *worse]).causes] == ["peer_slow"]


def test_long_waits_without_a_time_before() -> None:
    """They may be usual: only many seconds are a cause, and a possible one."""
    assert not verdict_of([waited(f"r-{n}", 20 + n, 2.0) for n in range(10)], baseline=0).causes
    many = verdict_of([waited(f"r-{n}", 20 + n, 2.0) for n in range(20)], baseline=0)
    assert [(cause.kind, cause.confidence) for cause in many.causes] == [("peer_slow", Confidence.POSSIBLE)]
    # Short ones came first.
    short = [waited(f"s-{n}", 100 + n, 0.01) for n in range(10)]
    late = verdict_of([*short, *(waited(f"r-{n}", 20 + n, 2.0) for n in range(20))], baseline=0)
    assert [(cause.kind, cause.confidence) for cause in late.causes] == [("peer_slow", Confidence.LIKELY)]


def test_peers_that_fail_at_one_engine_only() -> None:
    """The engine's own network comes first; another engine that sees a peer fail says that it is the peer."""
    late = {"error_type": common.ERROR_TYPE_TIMEOUT}
    bad = [failed(f"{peer}-{n}", 60 + n, peer, **late) for peer in ("a:1", "b:1", "c:1") for n in range(3)]
    causes = verdict_of([*calm(), *bad]).causes
    assert {cause.confidence for cause in causes} == {Confidence.POSSIBLE}
    assert causes[0].alternatives[0] == "engine decode/0 itself or its network: 2 other peers fail there, too"
    assert causes[0].commands[0] == "agentctl describe engine decode/0"
    assert not any("quarantine" in command for cause in causes for command in cause.commands)
    more = [(EngineKey("decode", "1"), "decode", failed("elsewhere", 60, "a:1", **late))]
    sure = {cause.peer: cause.confidence for cause in verdict_of([*calm(), *bad], more=more).causes}
    assert sure == {"a:1": Confidence.CERTAIN, "b:1": Confidence.POSSIBLE, "c:1": Confidence.POSSIBLE}


def _refused(*peers: str) -> list[Event]:
    return [
        each
        for n, peer in enumerate(peers)
        for each in (failed(peer, 60 + n, peer), decided(peer, 59, peer={"address": peer}))
    ]


def test_addresses_that_a_router_still_names() -> None:
    """Nothing listens at them: one cause, below which are the leases that nobody reads."""
    log = [*_refused("a:1", "b:1", "c:1"), *_expired()]
    (cause,) = verdict_of([*calm(), *log]).causes
    assert (cause.kind, cause.peer, cause.peers) == ("addresses_refuse", "", ("a:1", "b:1", "c:1"))
    assert cause.sentence == (
        "3 addresses, from which nothing was loaded, refuse connections: 3 requests failed"
    )
    assert (cause.requests, cause.failed, cause.confidence) == (3, 3, Confidence.LIKELY)
    assert [each.kind for each in cause.effects] == ["leases_expire"]
    # Where nothing else is loaded, it may be the network of the engine.
    alone = verdict_of(log, baseline=0).causes[0]
    assert alone.confidence == Confidence.POSSIBLE
    assert alone.alternatives[0].startswith("engine decode/0 or the network there")


def test_a_quarantine_that_was_lifted() -> None:
    """It is told as ended, with the leases that nobody could read meanwhile below it."""
    by = common.DECIDED_BY_QUARANTINE
    rows = [decided(f"r-{n}", 15 + n, peer={"address": "a:1"}, decided_by=by) for n in range(3)]
    verdict = verdict_of([*calm(), *rows, *_expired()], engines=[engine(facts={"side_channel": "a:1"})])
    (cause, *rest) = verdict.causes
    assert (cause.kind, cause.until, cause.requests) == ("healthy_peer_quarantined", at(15), 3)
    assert cause.sentence.startswith("peer a:1 was in quarantine on engine decode/0")
    assert ([each.kind for each in cause.effects], rest) == (["leases_expire"], [])
    # One that the engine opened before the log begins, such as of an incompatible peer, goes on.
    own = admin.Quarantine(
        key={"server": "decode", "engine": "0"},
        peer={"address": "a:1"},
        state=events.QUARANTINE_STATE_OPEN,
    )
    assert not verdict_of([*calm(), *rows], quarantines=[own]).causes


def test_leases_of_a_peer_that_cannot_be_read() -> None:
    """Nobody reads them because nobody may: they stand under that; those of another engine do not."""
    bad = [failed("bad", 60, "a:1", error_type=common.ERROR_TYPE_INCOMPATIBLE), decided("bad", 59)]
    log = [*calm(), *bad, *_expired()]
    own = engine(facts={"side_channel": "a:1"})
    (cause,) = verdict_of(log, engines=[own]).causes
    assert (cause.kind, [each.kind for each in cause.effects]) == ("incompatible_peer", ["leases_expire"])
    other = engine(facts={"side_channel": "b:1"})
    told = {each.kind for each in verdict_of(log, engines=[other]).causes}
    assert told == {"incompatible_peer", "leases_expire"}


def test_pods_that_refuse_are_no_stale_addresses() -> None:
    """Two may be two pods; so are those from which something was loaded, or whose engine is known."""
    assert {each.kind for each in verdict_of([*calm(), *_refused("a:1", "b:1")]).causes} == {"peer_refuses"}
    before = [waited("once", 900, 0.01, "a:1"), *_refused("a:1", "b:1", "c:1")]
    assert {each.peer for each in verdict_of([*calm(), *before]).causes} == {"a:1", "b:1", "c:1"}
    known = engine("prefill", facts={"side_channel": "a:1"})
    told = verdict_of([*calm(), *_refused("a:1", "b:1", "c:1")], engines=[engine(), known])
    assert {each.peer for each in told.causes} == {"a:1", "b:1", "c:1"}


def test_others_behind_a_dead_peer_are_its_victims() -> None:
    """What they waited is the dead peer's, and they are no causes."""
    bad = [failed(f"bad-{n}", 60, OTHER, error_type=common.ERROR_TYPE_TIMEOUT) for n in range(2)]
    behind = [
        waited("behind", 50, 20.0),
        event(
            "transfer_delayed",
            "behind",
            time_ns=at(51),
            peer={"address": PEER},
            caused_by_peer={"address": OTHER},
            delay_nano=int(20e9),
        ),
        failed("victim", 40, mode=common.FAILURE_MODE_COLLATERAL, caused_by_peer={"address": OTHER}),
        waited("victim", 40, 20.0),
        decided("victim", 40),
    ]
    verdict = verdict_of([*calm(), *bad, *behind])
    assert [(cause.kind, cause.peer) for cause in verdict.causes] == [("peer_times_out", OTHER)]
    assert verdict.causes[0].failed == 1
    assert verdict.causes[0].seconds == pytest.approx(40, abs=0.1)


def test_requests_that_hang_now() -> None:
    """A snapshot says since when; the log says what is usual."""
    row = {"reason": common.DEFERRAL_REASON_REMOTE_KV, "peer": {"address": OTHER}, "count": 4}
    hanging = engine(deferred=[{**row, "oldest_start_time_unix_nano": at(30)}])
    cause = verdict_of(calm(), engines=[hanging]).causes[0]
    assert (cause.kind, cause.peer, cause.requests) == ("peer_slow", OTHER, 4)
    assert "the oldest for 30s" in cause.sentence


def test_a_policy_of_fail_everywhere() -> None:
    """It was changed in the window: it is to blame before the peer whose loads fail."""
    before = [
        entry
        for n in range(4)
        for entry in (failed(f"old-{n}", 900), decided(f"old-{n}", 900, common.OUTCOME_RECOMPUTED))
    ]
    ends: dict[str, Any] = {"decided_by": common.DECIDED_BY_POLICY, "policy_hash": HASH}
    now = [entry for n in range(4) for entry in (failed(f"bad-{n}", 60), decided(f"bad-{n}", 60, **ends))]
    in_force = engine(policy={"hash": HASH, "kv_action": "fail"})
    verdict = verdict_of([*calm(), *before, *now], engines=[in_force], policies={(DECODE, HASH): (FAIL,)})
    assert [cause.kind for cause in verdict.causes] == ["policy_fails_loads", "peer_refuses"]
    cause = verdict.causes[0]
    assert "harsh (generation 1 by mallory@host)" in cause.sentence
    assert cause.sentence.endswith(
        "because their KV load failed and this policy does not allow recomputation"
    )
    assert cause.commands[0] == "agentctl delete policy harsh"
    assert "4 recomputed" in cause.evidence[0].before


def test_an_old_policy_is_how_things_are() -> None:
    """One peer that fails under it is the cause."""
    old = FAIL._replace(changed_time_unix_nano=at(90_000))
    ends: dict[str, Any] = {"decided_by": common.DECIDED_BY_POLICY, "policy_hash": HASH}
    now = [entry for n in range(4) for entry in (failed(f"bad-{n}", 60), decided(f"bad-{n}", 60, **ends))]
    verdict = verdict_of(
        [*calm(), *now],
        engines=[engine(policy={"hash": HASH, "kv_action": "fail"})],
        policies={(DECODE, HASH): (old,)},
    )
    assert [cause.kind for cause in verdict.causes] == ["peer_refuses"]


def test_a_policy_that_an_engine_refuses() -> None:
    """What is in force is another than what is wanted."""
    refusing = engine(in_sync=False, policy={"last_error": "kvLoadFailure.action: no"})
    assert verdict_of(calm(), engines=[refusing]).causes[0].kind == "policy_refused"


@pytest.mark.parametrize(
    ("decided_by", "kind"),
    [
        (common.DECIDED_BY_BUDGET, "recompute_budget_exhausted"),
        (common.DECIDED_BY_DEADLINE, "deadline_ends_waits"),
    ],
)
def test_limits_of_a_policy(decided_by: int, kind: str) -> None:
    """They come after the peer that needs them."""
    rows = [
        entry
        for n in range(4)
        for entry in (failed(f"bad-{n}", 60), decided(f"bad-{n}", 60, decided_by=decided_by))
    ]
    assert [cause.kind for cause in verdict_of([*calm(), *rows]).causes] == ["peer_refuses", kind]


def test_a_drill_that_runs() -> None:
    """What it causes is its own, and no peer's."""
    drill = admin.Drill(id="d1", engines=[{"key": {"server": "decode", "engine": "0"}}])
    drill.spec.author, drill.spec.rate = "bob@host", 1.0
    drill.started.FromNanoseconds(at(90))
    told = failed("bad", 60)
    told.rehearsal = True
    end = decided("bad", 60)
    end.rehearsal = True
    verdict = verdict_of([*calm(), told, end], drills=[drill])
    assert [cause.kind for cause in verdict.causes] == ["drill"]
    assert verdict.causes[0].commands == ("agentctl drill stop d1",)
    ended = verdict_of([*calm(), told, end])
    assert [cause.kind for cause in ended.causes] == ["drill_ended"]


def test_a_pause_that_was_left_on() -> None:
    """Nothing is known of its engine, and that is said."""
    paused = engine(paused=True, pause={"author": "bob@host", "reason": "INC-9"})
    cause = verdict_of(calm(), engines=[paused]).causes[0]
    assert cause.kind == "paused"
    assert "by bob@host: INC-9" in cause.evidence[0].fact


def _ejected(seconds: int, *, in_force: bool = True, ended: bool = False) -> dict[str, Any]:
    """Return an order that takes a server out of rotation, and ends in *seconds*."""
    order = admin.Ejection(author="bob@host", reason="INC-9", in_force=in_force)
    if not ended:
        order.since.FromNanoseconds(at(900))
    order.until.FromNanoseconds(at(-seconds))
    return {"ejection": order}


def test_a_server_out_of_rotation() -> None:
    """By whose order, why and how it ends; one cause for an order, and only while it is in force."""
    both = [engine(**_ejected(60)), engine(key={"server": "decode", "engine": "1"}, **_ejected(60))]
    (cause,) = verdict_of(calm(), engines=both).causes
    assert (cause.kind, cause.since, len(cause.engines)) == ("out_of_rotation", at(900), 2)
    assert cause.confidence is Confidence.CERTAIN
    assert "out of rotation by order of bob@host" in cause.sentence
    assert "by bob@host: INC-9; ends in 1m" in cause.evidence[0].fact
    assert cause.commands[0] == "agentctl eject off decode/0 decode/1"


def test_a_server_whose_front_end_has_not_said_so() -> None:
    """It is possible that requests still come."""
    (cause,) = verdict_of(calm(), engines=[engine(**_ejected(60, in_force=False))]).causes
    assert cause.confidence is Confidence.POSSIBLE
    assert "engine decode/0 is to go out of rotation by order of bob@host" in cause.sentence
    assert "they have not said that they answer so" in cause.evidence[1].fact


@pytest.mark.parametrize(
    "fields", [_ejected(0), _ejected(60, ended=True), {**_ejected(60), "connected": False}]
)
def test_an_order_that_is_over(fields: dict[str, Any]) -> None:
    """Nothing is said of it, nor of a server that is not there."""
    kinds = {cause.kind for cause in verdict_of(calm(), engines=[engine(**fields)]).causes}
    assert "out_of_rotation" not in kinds


def test_a_healthy_peer_in_quarantine() -> None:
    """An operator's order, and no failure of the peer."""
    order = admin.Quarantine(
        key={"server": "decode", "engine": "0"},
        peer={"address": OTHER},
        state=events.QUARANTINE_STATE_OPEN,
        author="bob@host",
        reason="INC-1",
    )
    ends = [
        decided(f"cut-{n}", 60, peer={"address": OTHER}, decided_by=common.DECIDED_BY_QUARANTINE)
        for n in range(2)
    ]
    cause = verdict_of([*calm(), *ends], quarantines=[order]).causes[0]
    assert (cause.kind, cause.peer, cause.failed) == ("healthy_peer_quarantined", OTHER, 2)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"upstream_invalid": True}, "upstream_invalid_peer"),
        ({"quarantine": events.QUARANTINE_STATE_OPEN}, "peer_stays_quarantined"),
    ],
)
def test_a_peer_that_stays_cut_off(status: dict[str, Any], kind: str) -> None:
    """No failure in the window, and still no loads from it."""
    row = admin.PeerSummary(key={"server": "decode", "engine": "0"}, peer={"address": OTHER}, status=status)
    assert verdict_of(calm(), peers=[row]).causes[0].kind == kind


@pytest.mark.parametrize(
    ("peer", "name"),
    [("unknown", "an unknown peer"), ("disk", "this machine's disk"), (OTHER, f"peer {OTHER}")],
)
def test_what_is_no_server_is_not_named_as_one(peer: str, name: str) -> None:
    """The address unknown is no name, and a disk is no peer."""
    slow = [waited(f"slow-{n}", 60, 20.0, peer) for n in range(4)]
    assert verdict_of([*calm(), *slow]).causes[0].sentence.startswith(f"{name} was slow, and was not tried")


def test_late_reads() -> None:
    """Answers that may be wrong are worse than requests that failed."""
    late = failed("p-1", 30, "unknown", mode=common.FAILURE_MODE_LATE_READ)
    verdict = verdict_of([*calm(), late, *_failures(common.ERROR_TYPE_REFUSED)[:1]])
    assert verdict.causes[0].kind == "late_reads"
    assert "p-1" in verdict.causes[0].evidence[1].fact


def test_leases_that_were_read_late_are_late_reads_only() -> None:
    """Nothing is told twice: of nine, five were read afterwards, and four never."""
    ended = [
        event("lease_closed", f"p-{n}", time_ns=at(90), ending=events.LEASE_ENDING_EXPIRED, blocks=1)
        for n in range(9)
    ]
    late = [failed(f"p-{n}", 80, "unknown", mode=common.FAILURE_MODE_LATE_READ) for n in range(5)]
    first, second = verdict_of([*calm(), *ended, *late]).causes
    assert (first.kind, second.kind) == ("late_reads", "leases_expire")
    assert "4 leases of engine" in second.sentence
    (only,) = verdict_of([*calm(), *ended[:5], *late]).causes
    assert only.kind == "late_reads"


def test_leases_whose_late_reads_spoil_nothing_expired() -> None:
    """They are told as leases, as the reads are no cause."""
    ended = [
        event("lease_closed", f"p-{n}", time_ns=at(90), ending=events.LEASE_ENDING_EXPIRED, blocks=1)
        for n in range(9)
    ]
    late = [failed(f"p-{n}", 80, "unknown", mode=common.FAILURE_MODE_LATE_READ) for n in range(9)]
    (cause,) = verdict_of([*calm(), *ended, *late], cleared_late_reads={f"p-{n}" for n in range(9)}).causes
    assert cause.kind == "leases_expire"
    assert "9 leases of engine" in cause.sentence


def test_leases_that_expire() -> None:
    """By engine, with those that were read."""
    rows = [
        event(
            "lease_closed",
            f"p-{n}",
            time_ns=at(60),
            ending=events.LEASE_ENDING_EXPIRED if n else events.LEASE_ENDING_READ,
            start_time_unix_nano=at(90),
            blocks=10,
        )
        for n in range(5)
    ]
    cause = verdict_of([*calm(), *rows]).causes[0]
    assert cause.kind == "leases_expire"
    assert cause.evidence[0].fact == "4 expired and 1 released in 10m"
    # Some clients disconnect.
    assert not verdict_of([*calm(), *rows[:4]]).causes


def test_leases_that_no_one_reads() -> None:
    """A decode engine died after prefill: the blocks wait, and every other gauge is 0."""
    keeping = engine(
        "prefill",
        common.ROLE_PREFILL,
        leases={"count": 3, "blocks": 300, "oldest_start_time_unix_nano": at(200)},
    )
    cause = verdict_of(calm(), engines=[engine(), keeping]).causes[0]
    assert cause.kind == "leases_wait"
    assert "30 % of its KV cache" not in cause.sentence


@pytest.mark.parametrize(
    ("holder", "kind"),
    [
        (snapshots.BLOCK_HOLDER_ABORTED, "aborted_loads_hold_blocks"),
        (snapshots.BLOCK_HOLDER_PINNED, "pinned_blocks"),
        (snapshots.BLOCK_HOLDER_SAVE, "saves_hold_blocks"),
    ],
)
def test_blocks_that_are_held(holder: int, kind: str) -> None:
    """Old ones are a cause, and young ones none."""

    def held(ago: float) -> Held:
        row = snapshots.HeldBlocks(
            holder=holder,  # type: ignore[arg-type]
            peer={"address": PEER},
            requests=2,
            blocks=400,
            oldest_start_time_unix_nano=at(ago),
        )
        return Held(DECODE, row)

    cause = verdict_of(calm(), held=[held(100)]).causes[0]
    assert cause.kind == kind
    assert cause.sentence.startswith("engine decode/0: 400 blocks are still held by ")
    assert verdict_of(calm(), held=[held(1)]).answer == VerdictKind.NOTHING_WRONG


def test_blocks_that_a_peer_in_trouble_holds_stand_under_it() -> None:
    """The blocks of loads from it, and no other's."""
    rows = [
        Held(
            DECODE,
            snapshots.HeldBlocks(
                holder=snapshots.BLOCK_HOLDER_ABORTED,
                peer={"address": peer},
                requests=1,
                blocks=4,
                oldest_start_time_unix_nano=at(100),
            ),
        )
        for peer in (PEER, OTHER)
    ]
    causes = verdict_of([*calm(), *_failures(common.ERROR_TYPE_REFUSED)], held=rows).causes
    assert [each.kind for each in causes] == ["peer_refuses", "aborted_loads_hold_blocks"]
    assert [each.peer for each in causes[0].effects] == [PEER]
    assert causes[1].peer == OTHER


@pytest.mark.parametrize(("key", "ago"), [({"server": "d2", "engine": "0"}, 100), ({}, 3000)])
def test_blocks_that_were_held_before_or_elsewhere_have_a_cause_of_their_own(
    key: dict[str, str], ago: float
) -> None:
    """What a peer does to one engine now is no reason for what another one holds, or has held for long."""
    row = snapshots.HeldBlocks(
        holder=snapshots.BLOCK_HOLDER_PINNED,
        peer={"address": PEER},
        requests=1,
        blocks=4,
        oldest_start_time_unix_nano=at(ago),
    )
    owner = EngineKey(**key) if key else DECODE
    causes = verdict_of([*calm(), *_failures(common.ERROR_TYPE_REFUSED)], held=[Held(owner, row)]).causes
    assert {each.kind for each in causes} == {"peer_refuses", "pinned_blocks"}


def test_an_engine_that_vanished() -> None:
    """How often, and whether it is back."""
    lost = [event("source_lost", time_ns=at(ago), process="engine-core") for ago in (50, 200)]
    cause = verdict_of([*calm(), *lost]).causes[0]
    assert cause.kind == "engine_lost"
    assert "2 times" in cause.sentence
    assert "is connected again" in cause.sentence


def test_a_worker_that_vanished() -> None:
    """Its engine is there."""
    lost = event("source_lost", time_ns=at(50), process="worker")
    assert verdict_of([*calm(), lost]).causes[0].kind == "process_lost"
    gone, there = ({"hello": {"process": "worker"}, "connected": connected} for connected in (False, True))
    left = verdict_of([*calm(), lost], engines=[engine(sources=[gone, there])])
    # An engine does not outlive its worker: while it goes on, the worker may only have lost its connection.
    (cause,) = left.causes
    assert (cause.kind, cause.confidence) == ("process_lost", Confidence.POSSIBLE)
    assert cause.sentence == (
        "the agent lost sight of the worker process of engine decode/0, last 50s ago; it is not connected"
    )
    dead = verdict_of([*calm(), lost], engines=[engine(connected=False, sources=[gone])])
    assert dead.causes[0].confidence == Confidence.CERTAIN
    # vLLM ends an engine whose worker does not answer in time: that is over then.
    ended = engine(connected=False, said_goodbye=True, sources=[gone])
    ended.last_seen.FromNanoseconds(at(20))
    (over,) = verdict_of([*calm(), lost], engines=[engine("other"), ended]).causes
    assert over.until == at(20)
    assert "its engine has said goodbye since" in over.sentence
    # It was back, and is away again, which is told when that is a loss.
    again = admin.Source(hello={"process": "worker"})
    again.last_seen.FromNanoseconds(at(1))
    assert not verdict_of([*calm(), lost], engines=[engine(sources=[again])]).causes
    # A child that ended, or a worker that was replaced.
    assert not verdict_of([*calm(), lost], engines=[engine(sources=[there])]).causes


def test_an_engine_that_went_earlier() -> None:
    """The log does not tell, the agent knows."""
    away = engine("prefill", connected=False)
    assert verdict_of(calm(), engines=[engine(), away]).causes[0].kind == "engine_away"
    stopped = engine("prefill", connected=False, said_goodbye=True)
    assert verdict_of(calm(), engines=[engine(), stopped]).answer == VerdictKind.NOTHING_WRONG


def test_an_engine_that_went_a_moment_ago() -> None:
    """It may come back to an agent that was restarted, or its server may say goodbye; one that cannot store knows no more."""
    away = engine("prefill", connected=False)
    fields: dict[str, Any] = {"engines": [engine(), away], "awaited": {EngineKey("prefill", "0")}}
    assert verdict_of(calm(), **fields).answer == VerdictKind.NOTHING_WRONG
    (blind,) = verdict_of(calm(), **fields, blind="database or disk is full").causes
    assert [each.kind for each in blind.effects] == ["engine_away"]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"lost_entries": 5, "hello": {"start_time_unix_nano": at(60)}}, "entries_lost"),
        ({"unaccounted_entries": 5}, "entries_lost"),
        ({"connected": True, "clock_offset_nano": 5_000_000_000}, "clock_offset"),
    ],
)
def test_what_the_agent_sees_badly(source: dict[str, Any], kind: str) -> None:
    """It is a cause of its own, the least."""
    assert verdict_of(calm(), engines=[engine(sources=[source])]).causes[0].kind == kind


def test_entries_that_a_process_of_the_time_before_lost() -> None:
    """When is not known: a possible cause, the least, with how many each engine lost and since when."""
    old = [
        {"lost_entries": number, "hello": {"start_time_unix_nano": at(minutes * 60)}}
        for number, minutes in ((5, 40), (2, 30))
    ]
    engines = [engine(sources=old[:1]), engine("other", sources=old)]
    (cause,) = verdict_of(calm(), engines=engines).causes
    assert (cause.kind, cause.confidence) == ("entries_lost", Confidence.POSSIBLE)
    assert "engines decode/0, other/0 lost entries since the process began, perhaps before" in cause.sentence
    assert [each.fact for each in cause.evidence] == [
        "engine decode/0: 5 entries counted as lost since its process began 40m ago",
        "engine other/0: 7 entries counted as lost since its process began 40m ago",
    ]
    # Of an engine that loses now, and of another, one cause tells.
    new = {"lost_entries": 3, "hello": {"start_time_unix_nano": at(60)}}
    both = [engine(sources=[*old, new]), engine("other", sources=old[:1])]
    (cause,) = verdict_of(calm(), engines=both).causes
    assert (cause.confidence, len(cause.engines), len(cause.evidence)) == (Confidence.CERTAIN, 2, 2)
    assert "entries of engine decode/0 are missing" in cause.sentence
    # Anything else comes first.
    failing = verdict_of([*calm(), *_failures(common.ERROR_TYPE_REFUSED)], engines=engines).causes
    assert failing[-1].kind == "entries_lost"
    assert len(failing) > 1


def test_entries_that_an_old_process_lost() -> None:
    """They say nothing of the times that are compared, and do not take "nothing is wrong" from an engine for ever."""
    old = {"lost_entries": 5, "hello": {"start_time_unix_nano": at(2 * 86_400)}}
    verdict = verdict_of(calm(), engines=[engine(sources=[old])])
    assert verdict.answer == VerdictKind.NOTHING_WRONG
    assert any("engine decode/0 lost entries" in each for each in verdict.missing)


def test_rebalances_that_stall() -> None:
    """Their pauses add up."""
    cause = verdict_of([*calm(), *rebalances(60, 120, 180, 240)]).causes[0]
    assert cause.kind == "eplb_stalls"
    assert "4 rebalances, paused 4.8s in all, up to 1.2s" in cause.sentence


def test_a_rebalance_of_several_ranks_is_one() -> None:
    """The ranks pause at the same time: the slowest counts, and is named."""
    slow, quick = rebalances(60, 120, 180, pause=1.6, rank=1), rebalances(60, 120, 180, pause=1.5)
    cause = verdict_of([*calm(), *quick, *slow, *rebalances(240, rank=1), *rebalances(240)]).causes[0]
    assert "4 rebalances, paused 6.0s in all, up to 1.6s" in cause.sentence
    assert cause.seconds == pytest.approx(3 * 1.6 + 1.2)
    assert "rank 1 paused longest in 3 of 4" in [each.fact for each in cause.evidence]
    other = verdict_of([*calm(), *quick, *slow[:1], *rebalances(120, 180, pause=1.4, rank=1)]).causes[0]
    assert "rank 0 paused longest in 2 of 3" in [each.fact for each in other.evidence]
    even = verdict_of([*calm(), *quick[:2], *slow[:1], *rebalances(120, pause=1.4, rank=1)]).causes[0]
    assert "ranks 0, 1 paused longest in 1 of 2 each" in [each.fact for each in even.evidence]
    alone = verdict_of([*calm(), *slow]).causes[0]
    assert not any("rank" in each.fact for each in alone.evidence)


def test_ranks_of_one_rebalance_are_joined_by_step_or_time() -> None:
    """Clocks of hosts differ, new ranks count steps anew, and another model's rebalance is another one."""
    early, late = rebalances(120, step=7), rebalances(110, rank=1, step=7)
    assert "1 rebalance," in verdict_of([*calm(), *early, *late]).causes[0].sentence
    apart = rebalances(110, rank=1, step=8)
    assert "2 rebalances," in verdict_of([*calm(), *early, *apart]).causes[0].sentence
    overlapping = rebalances(120.5, rank=1, step=1)
    assert "1 rebalance," in verdict_of([*calm(), *early, *overlapping]).causes[0].sentence
    other = rebalances(120, rank=1, step=7, model="draft")
    assert "2 rebalances," in verdict_of([*calm(), *early, *other]).causes[0].sentence


def test_a_rebalance_that_fails_on_every_rank_failed_once() -> None:
    """With the words of one of them."""
    rows = [each for rank in range(3) for each in rebalances(60, pause=0.01, ok=False, rank=rank)]
    assert "1 rebalance of experts failed" in verdict_of([*calm(), *rows]).causes[0].sentence


def test_rebalances_that_fail_and_that_stopped() -> None:
    """Short ones that are well are no cause."""
    assert verdict_of([*calm(), *rebalances(60, pause=0.01, ok=False)]).causes[0].kind == "eplb_fails"
    stopped = verdict_of([*calm(), *rebalances(*range(700, 4000, 150), pause=0.01)])
    assert [cause.kind for cause in stopped.causes] == ["eplb_stopped"]
    # Few in an hour: none was due in ten minutes.
    assert not verdict_of([*calm(), *rebalances(700, 1800, 2900, 4000, pause=0.01)]).causes
    assert verdict_of([*calm(), *rebalances(60, 700, pause=0.01)]).answer == VerdictKind.NOTHING_WRONG


def test_a_recompute_storm() -> None:
    """Many requests, and a large part of the prompts."""
    rows = [
        entry
        for n in range(12)
        for entry in (failed(f"bad-{n}", 60), decided(f"bad-{n}", 60, common.OUTCOME_RECOMPUTED))
    ]
    facts = facts_of([*calm(), *rows])
    assert "recompute_storm" in [cause.kind for cause in diagnose(facts).causes]
    facts.present.read_requests = 100
    assert "recompute_storm" not in [cause.kind for cause in diagnose(facts).causes]
    assert "recompute_storm" not in [cause.kind for cause in verdict_of(rows).causes]


def test_transfers_that_are_slow() -> None:
    """Against their own hour before, else against the other peers."""

    def row(address: str, p50: float, before: float = 0.0) -> admin.PeerSummary:
        return admin.PeerSummary(
            key={"server": "decode", "engine": "0"},
            peer={"address": address},
            transfers={
                "last_minute": {"count": 50, "p50_seconds": p50},
                # Of which a part is before the window.
                "last_15_minutes": {"count": 50, "p50_seconds": 9.0},
                "hour_before": {"count": 50 if before else 0, "p50_seconds": before},
            },
        )

    past = verdict_of(calm(), peers=[row("a:1", 1.0, 0.1), row("b:1", 0.1, 0.1)])
    assert [(cause.kind, cause.peer) for cause in past.causes] == [("slow_transfers", "a:1")]
    others = verdict_of(calm(), peers=[row("a:1", 1.0), row("b:1", 0.1), row("c:1", 0.1)])
    assert [cause.peer for cause in others.causes] == ["a:1"]
    assert verdict_of(calm(), peers=[row("a:1", 1.0), row("b:1", 0.9)]).answer == VerdictKind.NOTHING_WRONG


def test_a_router_that_sends_no_transfer_parameters() -> None:
    """Nearly all requests of a decode engine name no prefill."""
    bare = [closed(f"r-{n}", 60 + n, kv_role=common.ROLE_UNSPECIFIED) for n in range(200)]
    cause = verdict_of([*calm(), *bare]).causes[0]
    assert cause.kind == "no_transfer_parameters"
    assert cause.confidence == Confidence.CERTAIN
    guessed = engine(role_guessed=True)
    assert verdict_of([*calm(), *bare], engines=[guessed]).answer == VerdictKind.NOTHING_WRONG


def _routed(ago: Iterable[int], bare: int = 0, of: int = 1) -> list[Event]:
    """Tell of requests that ended so many seconds ago, *bare* of each *of* without transfer parameters."""
    return [
        closed(f"r-{each}", each, **({"kv_role": common.ROLE_UNSPECIFIED} if number % of < bare else {}))
        for number, each in enumerate(ago)
    ]


def _expired() -> list[Event]:
    return [
        event("lease_closed", f"l-{n}", time_ns=at(20 + n), ending=events.LEASE_ENDING_EXPIRED, blocks=4)
        for n in range(9)
    ]


def test_a_router_that_has_begun_to_fail() -> None:
    """It leads from the first requests on, whatever came before them in the window; unread leases are its effect."""
    log = [*calm(), *_routed(range(61, 600)), *_routed(range(1, 60), 1), *_expired()]
    cause, *others = verdict_of(log).causes
    assert (cause.kind, cause.confidence, others) == ("no_transfer_parameters", Confidence.CERTAIN, [])
    assert cause.sentence.startswith(
        "59 of 60 requests of the last 59s came to decode engine decode/0 without"
    )
    assert [each.kind for each in cause.effects] == ["leases_expire"]
    assert cause.effects[0].sentence.startswith("9 leases of engine decode/0 ended")
    # Without the router's fault the leases are a cause of their own.
    assert [each.kind for each in verdict_of([*calm(), *_expired()]).causes] == ["leases_expire"]


def test_a_router_that_fails_for_a_third() -> None:
    """It is named with its share where that is new; a share that was always so is how this router works."""
    log = [*calm(), *_routed(range(1, 300), 1, 3)]
    (cause,) = verdict_of(log).causes
    assert (cause.kind, cause.confidence) == ("no_transfer_parameters", Confidence.LIKELY)
    assert "requests of the last 5m (33 %) came to decode engine" in cause.sentence
    always = [*log, *_routed(range(700, 4000, 10), 1, 3)]
    assert verdict_of(always).answer == VerdictKind.NOTHING_WRONG


@pytest.mark.parametrize(("well", "kinds"), [(40, ["no_transfer_parameters"]), (10, [])])
def test_a_router_that_fails_for_a_third_in_a_young_log(well: int, kinds: list[str]) -> None:
    """What came before in the window says that it is new, if that many would have had some."""
    log = [*_routed(range(61, 61 + well)), *_routed(range(60, 1, -2), 1, 3)]
    assert [each.kind for each in verdict_of(log).causes] == kinds


def test_a_router_that_was_repaired() -> None:
    """In the past tense, with what it had brought about."""
    log = [*calm(), *_routed(range(1, 120)), *_routed(range(120, 300), 1)]
    verdict = verdict_of(log)
    (cause,) = verdict.causes
    assert (verdict.answer, cause.until) == (VerdictKind.NOTHING_WRONG, at(120))
    assert "came to decode engine decode/0 without transfer parameters" in cause.sentence
    assert cause.sentence.endswith("it computed their prompts itself; ended 2m ago")


@pytest.mark.parametrize(("made", "kinds"), [(300, ["no_transfer_parameters"]), (100, ["leases_expire"])])
def test_leases_that_outlive_the_router_s_fault(made: float, kinds: list[str]) -> None:
    """Those that were made while it lasted run out later: they are its effect. What was made since has another cause."""
    log = [*calm(), *_routed(range(1, 120)), *_routed(range(120, 400), 1)]
    late = [
        event(
            "lease_closed",
            f"l-{n}",
            time_ns=at(20),
            start_time_unix_nano=at(made),
            ending=events.LEASE_ENDING_EXPIRED,
            blocks=4,
        )
        for n in range(9)
    ]
    verdict = verdict_of([*log, *late])
    assert [each.kind for each in verdict.causes if each.kind in kinds] == kinds
    lasting = [each.kind for each in verdict.causes if not each.until]
    assert lasting == ([] if made > 120 else kinds)
    assert (verdict.answer == VerdictKind.NOTHING_WRONG) == (made > 120)


def test_an_agent_that_cannot_store() -> None:
    """It says so first; that engines are not connected is its effect, and says nothing of them."""
    bad = [failed(f"r-{n}", 5, OTHER) for n in range(5)]
    away = [engine(connected=False, last_seen={"seconds": at(60) // SECOND})]
    verdict = verdict_of([*calm(), *bad], engines=away, blind="database or disk is full")
    first, *others = verdict.causes
    assert first.kind == "agent_blind"
    assert "cannot store what engines report (database or disk is full)" in verdict.sentence
    assert [each.kind for each in first.effects] == ["engine_away"]
    assert first.effects[0].sentence.startswith("engine decode/0 is not connected")
    assert [each.kind for each in others] == ["peer_refuses"]


@pytest.mark.parametrize(
    ("events_", "fields", "why"),
    [
        ((), {"engines": []}, "no engine is known"),
        ((), {"engines": [engine(connected=False, said_goodbye=True)]}, "no engine is connected"),
        (
            (),
            {},
            "no request ended, or waited for a transfer, in the last 10m; what waits in the engines' own queues is not known",
        ),
        (calm(), {"engines": [admin.Engine(connected=True)]}, "no engine has sent a snapshot"),
        (calm(), {"unreadable": 1}, "a part of the log is damaged"),
    ],
)
def test_what_cannot_be_told(events_: list[Event], fields: dict[str, Any], why: str) -> None:
    """The verdict says what is missing."""
    verdict = verdict_of(events_, **fields)
    assert verdict.answer == VerdictKind.CANNOT_TELL
    assert why in verdict.sentence


def test_nothing_is_wrong() -> None:
    """And what was looked at is said."""
    verdict = verdict_of(calm())
    assert verdict.answer == VerdictKind.NOTHING_WRONG
    assert verdict.sentence == "nothing is wrong in the last 10m"
    assert "10 closed requests" in verdict.looked_at[1]


def test_what_was_read() -> None:
    """The verdict is about that, and not about the window; half of it is the least."""
    facts = facts_of(calm())
    facts.present.read_requests = 400
    verdict = diagnose(facts)
    assert verdict.sentence == "nothing is wrong in the last 7m"
    assert verdict.missing == (
        "there was too much to read: of the last 10m, waits and closed requests were examined only for the newest 7m",
    )
    facts.present.read_requests = 200
    assert diagnose(facts).answer == VerdictKind.CANNOT_TELL


@pytest.mark.parametrize("read", ["read", "read_requests"])
def test_a_time_before_that_was_not_read(read: str) -> None:
    """It is compared with nothing."""
    facts = facts_of([*calm(), *_failures(common.ERROR_TYPE_REFUSED)])
    setattr(facts.before, read, 1700)
    cause = diagnose(facts).causes[0]
    assert cause.evidence
    assert not any(each.before for each in cause.evidence)


@pytest.mark.parametrize("gate", ["queue", "own_prefill", "transfer"])
def test_first_tokens_that_come_late(gate: str) -> None:
    """The gate that took the time is named, against the time before."""
    rows = [
        closed(f"r-{n}", ago + n, gates={f"{gate}_nano": int(seconds * 1e9), "peer_nano": 10_000_000})
        for ago, seconds in ((60, 2.0), (900, 0.1))
        for n in range(6)
    ]
    cause = verdict_of([*calm(), *rows]).causes[0]
    assert cause.kind == "first_tokens_late"
    assert cause.sentence.endswith(f"the time is spent at {gate.replace('_', ' ')}")
    assert "110ms" in cause.evidence[0].before


def test_first_tokens_behind_a_slow_peer_are_its_own() -> None:
    """The gates are evidence of the peer."""
    rows = [
        entry
        for ago, seconds in ((60, 2.0), (900, 0.1))
        for n in range(6)
        for entry in (
            waited(f"r-{n}", ago + n, seconds),
            closed(f"r-{n}", ago + n, gates={"transfer_nano": int(seconds * 1e9)}),
        )
    ]
    verdict = verdict_of([*calm(), *rows])
    assert [cause.kind for cause in verdict.causes] == ["peer_slow"]
    assert any("2.0s at transfer" in each.fact for each in verdict.causes[0].evidence)


def test_a_log_that_is_too_full_for_a_time_before() -> None:
    """What the agent keeps of each peer says what is usual."""
    kept = admin.PeerSummary(
        key={"server": "decode", "engine": "0"},
        peer={"address": PEER},
        waits={"hour_before": {"count": 500, "p99_seconds": 0.02}},
    )
    slow = [waited(f"slow-{n}", 20 + n, 0.4) for n in range(6)]
    assert verdict_of(slow, baseline=0, peers=[kept]).causes[0].kind == "peer_slow"
    assert not verdict_of(slow, baseline=0).causes


def test_a_policy_that_is_gone_is_told_in_the_past_tense() -> None:
    """It never leads, and no command is proposed that needs it to exist."""
    ends: dict[str, Any] = {"decided_by": common.DECIDED_BY_POLICY, "policy_hash": HASH}
    bad = [entry for n in range(4) for entry in (failed(f"bad-{n}", 300), decided(f"bad-{n}", 300, **ends))]
    fields: dict[str, Any] = {
        "engines": [engine(policy={"hash": "another"})],
        "policies": {(DECODE, HASH): (FAIL,)},
        "policy_changes": {"harsh": at(200)},
    }
    verdict = verdict_of([*calm(), *bad], **fields)
    assert [(cause.kind, cause.until) for cause in verdict.causes] == [
        ("policy_fails_loads", at(200)),
        ("peer_refuses", at(300)),
    ]
    assert verdict.answer == VerdictKind.NOTHING_WRONG
    assert verdict.sentence == "nothing is wrong now; 2 causes ended, the last one 3m ago"
    cause = verdict.causes[0]
    assert "harsh (generation 1 by mallory@host) said kvLoadFailure.action: fail" in cause.sentence
    assert cause.sentence.endswith("this policy did not allow recomputation; ended 3m ago")
    assert cause.commands == ("agentctl get audit harsh",)

    # What lasts comes first, however small.
    verdict = verdict_of([*calm(), *bad, *(failed(f"now-{n}", 5, OTHER) for n in range(2))], **fields)
    assert [cause.peer for cause in verdict.causes] == [OTHER, "", PEER]
    assert verdict.sentence.startswith(f"peer {OTHER} refuses connections")
    assert verdict.sentence.endswith("; 2 have ended")


@pytest.mark.parametrize(
    "policy",
    [
        {"hash": HASH, "kv_action": "fail"},
        {"hash": "another"},
    ],
)
def test_a_policy_lasts_while_an_engine_has_it(policy: dict[str, Any]) -> None:
    """By its hash, or within another one; and where no engine can be asked."""
    ends: dict[str, Any] = {"decided_by": common.DECIDED_BY_POLICY, "policy_hash": HASH}
    bad = [entry for n in range(4) for entry in (failed(f"bad-{n}", 300), decided(f"bad-{n}", 300, **ends))]
    source = {"name": "harsh", "generation": 1, "fields": ["kvLoadFailure.action"]}
    for one in (engine(policy=policy, policies=[source]), engine(policy=policy, connected=False)):
        verdict = verdict_of([*calm(), *bad], engines=[one], policies={(DECODE, HASH): (FAIL,)})
        cause = next(each for each in verdict.causes if each.kind == "policy_fails_loads")
        assert cause.until == 0


def test_a_peer_that_is_well_again() -> None:
    """Its trouble ended with the last of it; it lasts where loads go on failing."""
    trouble = [failed(f"bad-{n}", 300 + n) for n in range(4)]
    (cause,) = verdict_of([*calm(), *trouble]).causes
    assert (cause.until, cause.kind) == (at(300), "peer_refuses")
    assert cause.sentence.startswith(f"peer {PEER} refused connections")
    assert not any("quarantine" in command for command in cause.commands)

    untried = [failed(f"bad-{n}", 300 + n, OTHER) for n in range(4)]
    assert [each.until for each in verdict_of(untried).causes] == [0]
    rare = [failed(f"bad-{n}", 90 + 120 * n) for n in range(4)]
    assert [each.until for each in verdict_of([*calm(), *rare]).causes] == [0]


def test_late_reads_are_harmless_only_where_all_are_known() -> None:
    """A window that was read in part, or with a damaged batch, clears none."""
    late = failed("p-1", 30, "unknown", mode=common.FAILURE_MODE_LATE_READ)
    facts = facts_of([late], cleared_late_reads={"p-1"})
    assert facts.harmless_late_reads == [DECODE]
    assert not replace(facts, unreadable=1).harmless_late_reads
    assert not replace(facts, present=replace(facts.present, read=100.0)).harmless_late_reads
