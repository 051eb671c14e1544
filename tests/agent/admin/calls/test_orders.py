"""The admin service's calls about quarantine and rehearsals, over real gRPC."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    CHANNEL_EC,
    CHANNEL_EPLB,
    CHANNEL_KV,
    FAILURE_MODE_HANDSHAKE,
    FAILURE_MODE_LATE_READ,
    FAILURE_MODE_LOAD,
)
from penstock.proto.v1.events_pb2 import (
    QUARANTINE_STATE_CLOSED,
    QUARANTINE_STATE_HALF_OPEN,
    QUARANTINE_STATE_OPEN,
    QUARANTINE_STATE_UNSPECIFIED,
    Event,
)
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from penstock.agent.model import Source

    from tests.support.agent.admin_server import AdminHarness

_PEER = "prefill-0:5600"
_ABLE: dict[str, Any] = {"supported": ("kv_load_failure", "peer_quarantine"), "faults_allowed": True}
_Row = tuple[str, str, int, str, str]


def _fails(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request)
    return caught.value.code(), caught.value.details() or ""


def _quarantine(**fields: Any) -> admin.SetQuarantineRequest:
    whole = {
        "peer": _PEER,
        "state": QUARANTINE_STATE_OPEN,
        "ttl": {"seconds": 3600},
        "author": "me",
        "reason": "INC-7",
    }
    return admin.SetQuarantineRequest(**{**whole, **fields})


def _drill(**fields: Any) -> admin.StartDrillRequest:
    whole = {"mode": FAILURE_MODE_HANDSHAKE, "rate": 0.5, "ttl": {"seconds": 60}, "author": "me"}
    return admin.StartDrillRequest(**{**whole, **fields})


def _listed(harness: AdminHarness, **selector: Any) -> list[_Row]:
    request = admin.ListQuarantinesRequest(selector=selector)
    return [
        (row.key.engine, row.peer.address, row.state, row.reason, row.author)
        for row in harness.stub.ListQuarantines(request).quarantines
    ]


def _wait_until_listed(harness: AdminHarness, row: _Row) -> None:
    wait_until(lambda: _listed(harness) == [row], "the engine has acknowledged")


def _report(harness: AdminHarness, core: Source, *peers: dict[str, Any]) -> None:
    harness.snapshot(core, Snapshot(peers=peers))


def test_a_quarantine_is_ordered_and_listed_once_it_holds(harness: AdminHarness) -> None:
    """It holds in the selected engine only; the list has author, reason and end."""
    harness.engine("0", tier="a", **_ABLE)
    harness.engine("1", tier="b", **_ABLE)
    answer = harness.stub.SetQuarantine(_quarantine(selector={"labels": "tier=a"}))
    assert (answer.peer.address, answer.state, answer.author) == (_PEER, QUARANTINE_STATE_OPEN, "me")
    assert 3590 < answer.until.ToSeconds() - time.time() <= 3600
    _wait_until_listed(harness, ("0", _PEER, QUARANTINE_STATE_OPEN, "INC-7", "me"))
    assert _listed(harness, labels="tier=b") == []


def test_a_lift_takes_the_place_of_the_order(harness: AdminHarness) -> None:
    """The peer is admitted again; the audit log has the order and the lift."""
    harness.engine("0", **_ABLE)
    harness.stub.SetQuarantine(_quarantine())
    harness.stub.SetQuarantine(
        _quarantine(state=QUARANTINE_STATE_CLOSED, ttl={"seconds": 60}, reason="", author="you")
    )
    _wait_until_listed(harness, ("0", _PEER, QUARANTINE_STATE_CLOSED, "operator", "you"))
    entries = harness.stub.ListAudit(admin.ListAuditRequest()).entries
    assert [(entry.action, entry.name) for entry in entries] == [
        ("quarantine-lift", f"peer {_PEER}"),
        ("quarantine-add", f"peer {_PEER}"),
    ]


def test_an_acknowledged_order_is_newer_than_the_snapshot(harness: AdminHarness) -> None:
    """The engine has let the peer in; its last snapshot, up to a second old, still has it cut off, and the other way round."""
    harness.engine("0", **_ABLE)
    core = harness.source("0")
    for state, snapshot in (
        (QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN),
        (QUARANTINE_STATE_OPEN, QUARANTINE_STATE_CLOSED),
    ):
        _report(harness, core, {"peer": {"address": _PEER}, "quarantine": snapshot, "connected": True})
        harness.stub.SetQuarantine(_quarantine(state=state))
        _wait_until_listed(harness, ("0", _PEER, state, "INC-7", "me"))
        (peer,) = harness.stub.ListPeers(admin.ListPeersRequest()).peers
        assert (peer.status.quarantine, peer.status.connected) == (state, True)


def test_what_the_engines_do_by_themselves_is_listed_with_its_reason(harness: AdminHarness) -> None:
    """From the snapshot; why, from the newest change in the log; an incompatible peer has no end."""
    core = harness.source("0")
    sick, other = {"address": "sick:1", "engine_id": "id-1"}, {"address": "other:1"}
    for reason in ("failures", "incompatible"):
        event = Event(time_unix_nano=time.time_ns())
        event.quarantine_changed.peer.address = sick["address"]
        event.quarantine_changed.reason = reason
        harness.append(core, event)
    rehearsed = Event(time_unix_nano=time.time_ns(), rehearsal=True)
    rehearsed.quarantine_changed.peer.address = other["address"]
    rehearsed.quarantine_changed.reason = "failures"
    harness.append(core, rehearsed)
    until = time.time_ns() + 10**9
    _report(
        harness,
        core,
        {"peer": sick, "quarantine": QUARANTINE_STATE_OPEN},
        {"peer": other, "quarantine": QUARANTINE_STATE_HALF_OPEN, "quarantine_until_unix_nano": until},
        {"peer": {"address": "well:1"}, "quarantine": QUARANTINE_STATE_CLOSED, "connected": True},
    )
    assert _listed(harness) == [
        ("0", "other:1", QUARANTINE_STATE_HALF_OPEN, "failures [drill]", ""),
        ("0", "sick:1", QUARANTINE_STATE_OPEN, "incompatible", ""),
    ]
    rows = harness.stub.ListQuarantines(admin.ListQuarantinesRequest()).quarantines
    assert [row.HasField("until") for row in rows] == [True, False]
    assert rows[0].until.ToNanoseconds() == until
    assert rows[1].peer.engine_id == "id-1"


def test_an_order_that_waits_for_its_engine_is_listed(harness: AdminHarness) -> None:
    """An order for an engine that is away is in the list."""
    harness.stub.SetQuarantine(_quarantine())
    assert _listed(harness) == [("", _PEER, QUARANTINE_STATE_UNSPECIFIED, "INC-7", "me")]
    away = harness.engine("0", **_ABLE)
    wait_until(lambda: _listed(harness)[0][:3] == ("0", _PEER, QUARANTINE_STATE_OPEN), "it has come")
    harness.hang_up(away)
    assert _listed(harness) == [("0", _PEER, QUARANTINE_STATE_UNSPECIFIED, "INC-7", "me")]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"peer": "prefill-0"}, "peer 'prefill-0' is not valid; give its side channel as host:port"),
        ({"peer": ""}, "peer '' is not valid"),
        ({"ttl": None}, "the ttl of a quarantine order is 0s; give one from 1s to 24h"),
        ({"ttl": {"seconds": 86401}}, "the ttl of a quarantine order is 24h1s; give one from 1s to 24h"),
        ({"state": QUARANTINE_STATE_HALF_OPEN}, "state must be OPEN"),
        ({"selector": {"labels": "=="}}, "selector term '==' cannot be read"),
    ],
)
def test_a_quarantine_that_makes_no_sense_is_refused(
    harness: AdminHarness, fields: dict[str, Any], sentence: str
) -> None:
    """The error has a sentence, and nothing changes."""
    code, details = _fails(harness.stub.SetQuarantine, _quarantine(**fields))
    assert (code, sentence in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert harness.orders.quarantines() == []


def test_an_engine_that_cannot_quarantine_is_named(harness: AdminHarness) -> None:
    """Engines that cannot quarantine and unknown engines are named; a lift is never refused."""
    harness.engine("0", supported=("kv_load_failure",))
    code, details = _fails(harness.stub.SetQuarantine, _quarantine())
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith("engine 0 cannot quarantine peers: ")
    code, details = _fails(harness.stub.SetQuarantine, _quarantine(selector={"labels": "role=none"}))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "no engine matches the selector" in details
    harness.stub.SetQuarantine(_quarantine(state=QUARANTINE_STATE_CLOSED))


def test_orders_stand_apart_from_the_policy(harness: AdminHarness) -> None:
    """An engine that refuses its policy runs the drill and cuts the peer off; one that refuses the drill says why."""
    harness.engine("0", refuse=lambda push: "not with me" if push.schedule else "", **_ABLE)
    harness.engine("1", refuse_drills="no such mode here", **_ABLE)
    manifest = json.dumps(document("any", kvLoadFailure=action("recompute")))
    harness.stub.ApplyPolicy(admin.ApplyPolicyRequest(manifest_json=manifest, author="me", all=True))
    harness.stub.SetQuarantine(_quarantine())
    harness.stub.StartDrill(_drill(selector={"labels": "role=decode"}))

    def states() -> list[tuple[str, str, str]]:
        (listed,) = harness.stub.ListDrills(admin.ListDrillsRequest()).drills
        return [(engine.key.engine, engine.state, engine.error) for engine in listed.engines]

    wanted = [("0", "acknowledged", ""), ("1", "refused", "no such mode here")]
    wait_until(lambda: states() == wanted, "both have answered")
    wait_until(
        lambda: (
            [row[:3] for row in _listed(harness)]
            == [(engine, _PEER, QUARANTINE_STATE_OPEN) for engine in ("0", "1")]
        ),
        "both have cut the peer off",
    )
    (policy,) = harness.stub.ListPolicies(admin.ListPoliciesRequest()).policies
    assert (policy.engines_selected, policy.engines_in_force) == (2, 1)


def test_a_drill_runs_where_it_is_wanted_until_it_is_stopped(harness: AdminHarness) -> None:
    """The list has each engine's state; an engine that connects later and does not allow faults is left out."""
    harness.engine("0", **_ABLE)
    drill = harness.stub.StartDrill(_drill(peer=_PEER, reason="game day", selector={"labels": "role=decode"}))
    assert (drill.spec.channel, drill.spec.rate, drill.spec.peer) == (CHANNEL_KV, 0.5, _PEER)
    assert drill.expires.ToNanoseconds() - drill.started.ToNanoseconds() == 60 * 10**9
    harness.engine("1")

    def states() -> list[tuple[str, str, str]]:
        (listed,) = harness.stub.ListDrills(admin.ListDrillsRequest()).drills
        assert (listed.id, listed.spec.reason, listed.spec.selector.labels) == (
            drill.id,
            "game day",
            "role=decode",
        )
        return [(engine.key.engine, engine.state, engine.error) for engine in listed.engines]

    refused = ("1", "refused", "not started with PENSTOCK_ALLOW_FAULTS=1")
    wait_until(lambda: states() == [("0", "acknowledged", ""), refused], "both have answered")
    assert harness.stub.StopDrill(admin.StopDrillRequest(id=drill.id, author="you")).id == drill.id
    assert list(harness.stub.ListDrills(admin.ListDrillsRequest()).drills) == []
    code, details = _fails(harness.stub.StopDrill, admin.StopDrillRequest(id=drill.id))
    assert (code, f"no drill {drill.id!r} is running" in details) == (grpc.StatusCode.NOT_FOUND, True)


def test_a_drill_is_refused_where_faults_are_not_allowed(harness: AdminHarness) -> None:
    """No engine runs it; the error names the engine that does not allow faults, and the remedy."""
    harness.engine("0", **_ABLE)
    harness.engine("1")
    code, details = _fails(harness.stub.StartDrill, _drill())
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == (
        "engine 1 does not allow faults: not started with PENSTOCK_ALLOW_FAULTS=1 in its environment; "
        "restart it with that, or exclude it with --selector"
    )
    assert harness.orders.drills() == []


def test_a_drill_needs_an_engine_that_is_there(harness: AdminHarness) -> None:
    """A drill without a connected engine is refused."""
    assert _fails(harness.stub.StartDrill, _drill())[0] is grpc.StatusCode.NOT_FOUND
    harness.source("0")
    code, details = _fails(harness.stub.StartDrill, _drill())
    assert (code, "none of the selected engines is connected" in details) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        True,
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rate": 0}, "rate 0 is not a share of attempts; use a number above 0 and up to 1"),
        ({"rate": 1.5}, "rate 1.5 is not a share"),
        ({"rate": float("nan")}, "rate nan is not a share"),
        ({"ttl": None}, "the ttl of a fault drill is 0s; give one from 1s to 1h"),
        ({"ttl": {"seconds": 3601}}, "the ttl of a fault drill is 1h1s; give one from 1s to 1h"),
        (
            {"mode": FAILURE_MODE_LATE_READ},
            "mode late_read of channel kv cannot be injected; use one of handshake, setup,",
        ),
        ({"mode": FAILURE_MODE_LOAD}, "mode load of channel kv cannot be injected"),
        ({"channel": CHANNEL_EC}, "mode handshake of channel ec cannot be injected; use one of probe"),
        ({"channel": CHANNEL_EPLB}, "channel eplb cannot be injected; use channel kv or ec"),
        ({"peer": "prefill 0"}, "peer 'prefill 0' is not valid"),
        ({"mode": 0}, "delay 0s is not valid for mode slow"),
        (
            {"mode": 0, "delay": {"seconds": 61}},
            "delay 1m1s is not valid for mode slow; use up to 60s",
        ),
        ({"delay": {"seconds": 1}}, "delay 1s is not valid for mode handshake"),
    ],
)
def test_a_drill_out_of_bounds_is_refused(
    harness: AdminHarness, fields: dict[str, Any], sentence: str
) -> None:
    """The error has the field, the value and the remedy."""
    harness.engine("0", **_ABLE)
    code, details = _fails(harness.stub.StartDrill, _drill(**fields))
    assert (code, sentence in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert harness.orders.drills() == []


def test_a_slow_drill_says_how_slow(harness: AdminHarness) -> None:
    """The list has its delay and no failure mode."""
    harness.engine("0", **_ABLE)
    drill = harness.stub.StartDrill(_drill(mode=0, delay={"seconds": 2}))
    assert (drill.spec.mode, drill.spec.delay.ToSeconds()) == (0, 2)


def test_reports_of_several_engines_make_one_peer(harness: AdminHarness) -> None:
    """One row joins the worker's connection state and the scheduler's quarantine state."""
    core, worker = harness.source("0"), harness.source("0", process="worker")
    _report(harness, core, {"peer": {"address": _PEER}, "quarantine": QUARANTINE_STATE_OPEN})
    _report(harness, worker, {"peer": {"address": _PEER, "engine_id": "id"}, "connected": True})
    (peer,) = harness.stub.ListPeers(admin.ListPeersRequest()).peers
    assert (peer.status.quarantine, peer.status.connected, peer.peer.engine_id) == (
        QUARANTINE_STATE_OPEN,
        True,
        "id",
    )


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63)])
def test_a_time_of_any_length_is_answered(harness: AdminHarness, seconds: int) -> None:
    """A duration beyond Python's range is refused as too long or too short."""
    harness.engine("0", **_ABLE)
    for call, request in (
        (harness.stub.SetQuarantine, _quarantine(ttl={"seconds": seconds})),
        (harness.stub.StartDrill, _drill(ttl={"seconds": seconds})),
        (harness.stub.StartDrill, _drill(mode=0, delay={"seconds": seconds})),
    ):
        assert _fails(call, request)[0] is grpc.StatusCode.INVALID_ARGUMENT


def _front_end(harness: AdminHarness, server: str, *, able: bool = True, out_until: int = 0) -> Source:
    source = harness.source("", server=server, process="api")
    hook = {"name": "readiness", "installed": able, "reason": "" if able else "vLLM lacks it"}
    harness.snapshot(source, Snapshot(hooks=[hook], out_of_rotation_until_unix_nano=out_until))
    return source


def _eject(**fields: Any) -> admin.SetEjectionRequest:
    whole = {
        "selector": {"engines": [{"server": "a", "engine": "0"}]},
        "ttl": {"seconds": 600},
        "author": "me",
    }
    return admin.SetEjectionRequest(**{**whole, **fields})


def _ejections(harness: AdminHarness) -> dict[str, admin.Ejection]:
    return {
        each.key.server: each.ejection
        for each in harness.stub.ListEngines(admin.ListEnginesRequest()).engines
        if each.HasField("ejection")
    }


def test_a_server_goes_out_of_rotation(harness: AdminHarness) -> None:
    """All engines of the server are named; it holds once every front end says so; it ends likewise."""
    for engine in ("0", "1"):
        harness.source(engine, server="a")
    harness.source("0", server="b")
    front_end = _front_end(harness, "a")
    answer = harness.stub.SetEjection(_eject(reason="INC-7"))
    assert [(key.server, key.engine) for key in answer.engines] == [("a", "0"), ("a", "1")]
    found = _ejections(harness)
    assert found.keys() == {"a"}
    assert (found["a"].author, found["a"].reason, found["a"].in_force) == ("me", "INC-7", False)
    assert 590 < found["a"].until.ToSeconds() - time.time() <= 600
    until = time.time_ns() + 60 * 10**9
    harness.snapshot(front_end, Snapshot(out_of_rotation_until_unix_nano=until))
    assert _ejections(harness)["a"].in_force
    listed = harness.stub.ListEjections(admin.ListEjectionsRequest())
    assert [(each.key.server, each.order.author) for each in listed.ejections] == [("a", "me")]
    assert listed.undecided.startswith("an agent ejects by order only")
    other = admin.EngineSelector(engines=[{"server": "b", "engine": "0"}])
    assert not harness.stub.ListEjections(admin.ListEjectionsRequest(selector=other)).ejections
    ended = admin.SetEjectionRequest(author="you")
    assert [key.server for key in harness.stub.SetEjection(ended).engines] == ["a", "a"]
    # While a front end has not followed, it is waited for again.
    assert len(harness.stub.SetEjection(ended).engines) == 2
    # The front end has not followed yet, and says until when it is out.
    left = _ejections(harness)["a"]
    assert (left.in_force, left.HasField("since"), left.until.ToNanoseconds()) == (True, False, until)
    harness.snapshot(front_end, Snapshot())
    assert _ejections(harness) == {}
    entries = harness.stub.ListAudit(admin.ListAuditRequest()).entries
    assert [(entry.action, entry.name, entry.author) for entry in entries] == [
        ("eject-off", "engine a/0, a/1", "you"),
        ("eject", "engine a/0, a/1", "me"),
    ]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"selector": {}}, grpc.StatusCode.INVALID_ARGUMENT, "all servers of the agent"),
        ({"ttl": {}}, grpc.StatusCode.INVALID_ARGUMENT, "give one from 1s to 24h"),
        ({"selector": {"engines": [{"engine": "7"}]}}, grpc.StatusCode.NOT_FOUND, "there is no engine '7'"),
        ({}, grpc.StatusCode.FAILED_PRECONDITION, "cannot answer for its readiness (vLLM lacks it)"),
    ],
)
def test_an_order_out_of_rotation_that_cannot_be(
    harness: AdminHarness, fields: dict[str, Any], code: grpc.StatusCode, text: str
) -> None:
    """The sentence says why, and nothing is ordered."""
    harness.source("0", server="a")
    _front_end(harness, "a", able=False)
    got, details = _fails(harness.stub.SetEjection, _eject(**fields))
    assert got is code
    assert text in details
    assert _ejections(harness) == {}
