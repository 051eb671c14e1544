"""What the judge says of a peer, beside what is seen of it: as tables, and in the list of an agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from penstock.agent.admin.calls import peers as calls
from penstock.agent.admin.lookups.known_peers import Condition, JudgedPeers, PeerSources, judged_peers
from penstock.agent.diagnosis import diagnosis_message
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.latencies.peers import PeerWindows
from penstock.agent.metrics.latencies.time_slots import DurationWindow, DurationWindows
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, TIME, event, transfer_failure
from tests.support.agent.diagnosed import at, calm, decided, engine, facts_of, failed, verdict_of
from tests.support.agent.metric_logs import SECOND, transfers

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness

_KEY, _PREFILL = EngineKey("", "0"), EngineKey("prefill", "0")
_OK, _FAILING = Condition(admin.PEER_CONDITION_OK), Condition(admin.PEER_CONDITION_FAILING, 3, "3 failures")
_HANGING = Condition(admin.PEER_CONDITION_HANGING, 12, "a request waits for 12 s")
_VANISHED = "engine encoder/0 vanished without a goodbye 50 s ago"


def _windows(answered: float = 0, unanswered: float = 0, minute: int = 0) -> PeerWindows:
    """Return windows of a peer whose newest success and whose last failure were so many seconds ago."""
    return PeerWindows(
        transfers=DurationWindows(last_minute=DurationWindow(minute, 0.1, 0.1)),
        answered=TIME - int(answered * SECOND) if answered else 0,
        unanswered=TIME - int(unanswered * SECOND) if unanswered else 0,
    )


def _judged(kind: str, since: float = 300, *, evidence: str = "", ended: bool = False) -> JudgedPeers:
    cause = admin.DiagnosedCause(
        kind=kind, sentence=f"it is {kind}", peer=PEER, engines=[{"engine": "0"}], harm=2
    )
    if since:
        cause.since.FromNanoseconds(TIME - int(since * SECOND))
    if evidence:
        cause.evidence.add(fact=evidence)
    if ended:
        cause.until.FromNanoseconds(TIME)
    return judged_peers(admin.Diagnosis(causes=[cause]), {}, {})


@pytest.mark.parametrize(
    ("judged", "windows", "live", "expected"),
    [
        # Nothing but failures since it began.
        (_judged("peer_refuses"), _windows(400, 100), _FAILING, "UNREACHABLE"),
        (_judged("peer_times_out"), _windows(0, 100), _OK, "UNREACHABLE"),
        (_judged("encoder_fails"), None, _OK, "UNREACHABLE"),
        # It has worked since, but not for a minute; it works now and then; since when is not known.
        (_judged("peer_fails"), _windows(200, 100), _FAILING, "UNREACHABLE"),
        (_judged("peer_fails"), _windows(200, 10, minute=5), _FAILING, "FAILING"),
        (_judged("peer_fails"), _windows(10, minute=5), _OK, "FAILING"),
        (_judged("peer_refuses", 0), _windows(200, 100), _FAILING, "UNREACHABLE"),
        (_judged("peer_refuses", 0), _windows(10, 1, minute=5), _FAILING, "FAILING"),
        # Its engine is gone; another one has its address.
        (_judged("encoder_fails", evidence=_VANISHED), _windows(400, 100), _FAILING, "LOST"),
        (_judged("encoder_fails", evidence=_VANISHED), _windows(5, minute=5), _OK, "FAILING"),
        (_judged("incompatible_peer"), _windows(0, 100), _FAILING, "INCOMPATIBLE"),
        (_judged("incompatible_peer"), _windows(10, minute=5), _OK, "FAILING"),
        # Nobody has tried; somebody has.
        (_judged("incompatible_pair"), None, _OK, "INCOMPATIBLE"),
        (_judged("incompatible_pair", 0), _windows(10, minute=5), _OK, "OK"),
        (_judged("wrong_engine_at_address"), _windows(0, 100), _FAILING, "WRONG_ENGINE"),
        # It answers, and wrongly.
        (_judged("weights_differ"), _windows(10, minute=5), _OK, "OTHER_WEIGHTS"),
        (_judged("weights_differ"), _windows(10, minute=5), _HANGING, "OTHER_WEIGHTS"),
        (_judged("peer_corrupts"), _windows(10, minute=5), _OK, "FAILING"),
        (_judged("peer_slow"), _windows(10, minute=5), _OK, "SLOW"),
        (_judged("peer_slow"), _windows(10, 1, minute=5), _FAILING, "FAILING"),
        # What waits now goes before what fails.
        (_judged("peer_refuses"), _windows(0, 100), _HANGING, "HANGING"),
        # What has ended, and what is not about the peer.
        (_judged("peer_refuses", ended=True), _windows(10, minute=5), _OK, "OK"),
        (_judged("leases_expire"), _windows(10, minute=5), _OK, "OK"),
    ],
)  # fmt: skip
def test_the_worst_of_what_is_seen_and_what_is_judged(
    judged: JudgedPeers, windows: PeerWindows | None, live: Condition, expected: str
) -> None:
    """With the sentence of the cause, and since when it lasts by the engine's clock."""
    ahead = 5 * SECOND
    found = judged.condition((_KEY, PEER), live, windows, 0)
    assert found.condition == admin.PeerCondition.Value(f"PEER_CONDITION_{expected}")
    assert judged.condition((_PREFILL, PEER), live, windows, 0) == live
    if found._replace(cause="") != live:
        assert found.reason.startswith("it is ")
        assert found.cause in found.reason
        later = judged.condition((_KEY, PEER), live, windows, ahead).since
        assert later == (found.since and found.since + ahead)


def test_the_evidence_that_an_engine_has_gone_is_the_judge_s_own() -> None:
    """As the rules write it."""
    lost = event("source_lost", time_ns=at(50), process="engine-core")
    bad = [failed(f"bad-{n}", 55, channel=common.CHANNEL_EC) for n in range(2)]
    ends = [decided(f"bad-{n}", 55, channel=common.CHANNEL_EC) for n in range(2)]
    fields: dict[str, Any] = {
        "more": [(EngineKey("encoder", "0"), "encoder", lost)],
        "engines": [engine(), engine("encoder", common.ROLE_ENCODER)],
    }
    events = [*calm(), *bad, *ends]
    found = judged_peers(diagnosis_message(verdict_of(events, **fields), facts_of(events, **fields)), {}, {})
    reader = EngineKey("decode", "0")
    assert found.condition((reader, PEER), _OK, None, 0).condition == admin.PEER_CONDITION_LOST


@pytest.mark.parametrize(
    ("kind", "away", "known", "lost"),
    [
        ("engine_lost", {_PREFILL: PEER}, {PEER: _PREFILL}, True),
        ("engine_away", {_PREFILL: PEER}, {PEER: _PREFILL}, True),
        # It is connected again; another engine has its address; its address is not known.
        ("engine_lost", {}, {PEER: _PREFILL}, False),
        ("engine_lost", {_PREFILL: PEER}, {PEER: _KEY}, False),
        ("engine_lost", {_PREFILL: ""}, {}, False),
        ("process_lost", {_PREFILL: PEER}, {PEER: _PREFILL}, False),
    ],
)
def test_a_lost_engine_is_lost_to_all_that_know_its_address(
    kind: str, away: dict[EngineKey, str], known: dict[str, EngineKey], lost: bool
) -> None:
    """Nothing need have failed there."""
    cause = admin.DiagnosedCause(kind=kind, sentence="gone", engines=[{"server": "prefill", "engine": "0"}])
    cause.since.FromNanoseconds(TIME - 30 * SECOND)
    judged = judged_peers(admin.Diagnosis(causes=[cause]), away, known)
    found = judged.condition((_KEY, PEER), _OK, _windows(50, minute=5), 0)
    assert (found.condition == admin.PEER_CONDITION_LOST) == lost
    # From whom loads succeed later, it is there.
    assert judged.condition((_KEY, PEER), _OK, _windows(10, minute=5), 0) == _OK


@pytest.mark.parametrize(
    ("here", "away", "expected"),
    [
        ({"a": "h:1"}, {}, {"h:1": "a"}),
        ({"a": "h:1", "b": "h:1", "c": "h:2"}, {}, {"h:2": "c"}),
        ({"a": "h:1"}, {"b": "h:1", "c": "h:3"}, {"h:1": "a", "h:3": "c"}),
        ({}, {"b": "h:1", "c": "h:1"}, {}),
        ({"a": ""}, {"b": ""}, {}),
        # Two that are here cannot both be there, and neither can one that is away.
        ({"a": "h:1", "b": "h:1"}, {"c": "h:1"}, {}),
    ],
)
def test_which_engine_is_behind_an_address(
    here: dict[str, str], away: dict[str, str], expected: dict[str, str]
) -> None:
    """The one that is connected, else the one that was there last."""
    keyed = [{EngineKey(name, "0"): address for name, address in each.items()} for each in (here, away)]
    sources = PeerSources(Aggregator(), {}, {}, {}, TIME, here=keyed[0], away=keyed[1])
    assert {address: key.server for address, key in sources.engines().items()} == expected


def _listed(harness: AdminHarness, **fields: Any) -> list[admin.PeerSummary]:
    return list(harness.stub.ListPeers(admin.ListPeersRequest(state="all", **fields)).peers)


@pytest.mark.parametrize("fact", ["side_channel", "ec_address"])
def test_a_known_engine_is_named_also_when_it_has_gone(harness: AdminHarness, fact: str) -> None:
    """By the address of its last facts, an encoder's as well; who has killed it, sees it lost, though nothing has failed since."""
    reader, there = harness.source("0"), harness.source("0", server="prefill", role="prefill")
    now = time.time_ns()
    harness.snapshot(there, Snapshot(time_unix_nano=now, engine={fact: PEER}))
    harness.snapshot(
        reader, Snapshot(time_unix_nano=now, peers=[{"peer": {"address": PEER}, "connected": True}])
    )
    harness.append(
        reader, batch=transfers([(5_000_000, 1, PEER, TRANSFER_RESULT_OK)], time_ns=now - 90 * SECOND)
    )
    (found,) = _listed(harness)
    assert (found.engine.server, found.engine.engine) == ("prefill", "0")
    assert found.condition == admin.PEER_CONDITION_OK
    assert not found.HasField("condition_since")

    harness.disconnect(there)
    cause = admin.DiagnosedCause(kind="engine_lost", sentence="gone", engines=[found.engine])
    cause.since.FromNanoseconds(now - 30 * SECOND)
    with _judging(admin.Diagnosis(causes=[cause])):
        (found,) = _listed(harness)
    assert (found.engine.server, found.condition) == ("prefill", admin.PEER_CONDITION_LOST)
    assert (found.condition_reason, found.condition_since) == ("gone", cause.since)


def _judging(diagnosis: admin.Diagnosis | None) -> Any:
    async def judgement(_: object) -> admin.Diagnosis | None:
        if diagnosis is None:
            raise ValueError("a rule")
        return diagnosis

    return patch.object(calls, "judgement", judgement)


def test_a_quarantined_peer_is_seen_as_quarantined(harness: AdminHarness) -> None:
    """Whatever is judged of it: nothing is loaded from it."""
    core = harness.source("0")
    status = {"peer": {"address": PEER}, "quarantine": QUARANTINE_STATE_OPEN}
    harness.append(core, transfer_failure("r", time_ns=time.time_ns()))
    harness.snapshot(core, Snapshot(time_unix_nano=time.time_ns(), peers=[status]))
    (found,) = _listed(harness)
    assert (found.condition, found.condition_reason) == (admin.PEER_CONDITION_QUARANTINED, "")


def test_a_peer_that_refuses_is_unreachable(harness: AdminHarness) -> None:
    """Since the first of the failures since which none has succeeded; in the judge's words."""
    core, now = harness.source("0"), time.time_ns()
    harness.append(core, *(transfer_failure(f"r{each}", time_ns=now + each) for each in range(5)))
    (found,) = _listed(harness)
    assert found.condition == admin.PEER_CONDITION_UNREACHABLE
    assert found.condition_reason.startswith(f"peer {PEER} refuses connections")
    assert found.condition_since.ToNanoseconds() == now


def test_a_rule_that_raises_takes_no_list_away(harness: AdminHarness) -> None:
    """What is seen is listed."""
    core = harness.source("0")
    harness.append(core, transfer_failure("r", time_ns=time.time_ns()))
    with _judging(None):
        (found,) = _listed(harness)
    assert found.condition == admin.PEER_CONDITION_FAILING


def test_the_judge_is_not_told_what_it_said(harness: AdminHarness) -> None:
    """The diagnosis is made of what is seen only: no list of it asks the judge."""
    core = harness.source("0")
    harness.append(core, transfer_failure("r", time_ns=time.time_ns()))
    with _judging(None):
        found = harness.stub.Diagnose(admin.DiagnoseRequest())
    assert [cause.kind for cause in found.causes] == ["peer_refuses"]


@pytest.mark.parametrize(("kind", "told"), [("incompatible_pair", True), ("engine_lost", False)])
def test_what_an_effect_says_of_a_peer(kind: str, told: bool) -> None:
    """A pair of mixed versions is incompatible; an agent whose disk is full does not know who is lost."""
    effect = admin.DiagnosedCause(kind=kind, peer=PEER, engines=[{"engine": "0"}])
    cause = admin.DiagnosedCause(kind="versions_mixed" if told else "agent_blind", effects=[effect])
    found = judged_peers(admin.Diagnosis(causes=[cause]), {_KEY: PEER}, {PEER: _KEY})
    assert bool(found.causes) == told
    assert not found.lost
