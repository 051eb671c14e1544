"""The admin service's calls about policies, rollouts and pauses, over real gRPC."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.agent import wait_until
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness

_DECODE: dict[str, Any] = {"selector": {"matchLabels": {"role": "decode"}}}

_EVERYWHERE = (
    "spec.selector is empty: the policy would apply to every engine, including later ones; "
    "give a selector (--selector, --model), or confirm with --all"
)


def _apply(
    harness: AdminHarness, name: str = "p", *, dry_run: bool = False, everywhere: bool = False, **spec: Any
) -> Any:
    request = admin.ApplyPolicyRequest(
        manifest_json=json.dumps(document(name, **{**_DECODE, **spec})),
        author="me",
        dry_run=dry_run,
        all=everywhere,
    )
    return harness.stub.ApplyPolicy(request)


def _fails(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    # A stream fails when it is read.
    with pytest.raises(grpc.RpcError) as caught:
        list(call(request))
    return caught.value.code(), caught.value.details() or ""


def _rollout(harness: AdminHarness, seconds: float = 60, **fields: Any) -> admin.Rollout:
    request = admin.WatchRolloutRequest(**fields)
    request.timeout.FromMilliseconds(int(seconds * 1000))
    return list(harness.stub.WatchRollout(request))[-1]


def test_a_change_is_shown_engine_by_engine_and_field_by_field(harness: AdminHarness) -> None:
    """With the policy that gives each value; a dry run shows the same and changes nothing."""
    harness.engine("0")
    harness.engine("1", role="prefill")
    planned = _apply(harness, dry_run=True)
    assert harness.store.policies() == ()
    done = _apply(harness)
    assert (done.result, done.generation, done.store_generation, list(done.warnings)) == ("created", 1, 1, [])
    for response in (planned, done):
        assert [change.key.engine for change in response.engines] == ["0"]
        assert [(f.field, f.old_value, f.new_value, f.new_policy) for f in response.engines[0].fields] == [
            ("kvLoadFailure.action", "", "recompute", "p")
        ]
    second = _apply(harness, "q", priority=200, kvLoadFailure=action("auto"))
    change = second.engines[0]
    assert [(f.old_value, f.old_policy, f.new_value, f.new_policy) for f in change.fields] == [
        ("recompute", "p", "auto", "q")
    ]
    assert change.old_hash == done.engines[0].new_hash


def test_a_policy_in_mode_observe_shows_what_is_observed(harness: AdminHarness) -> None:
    """Observed values have a prefix; enforced values do not change."""
    harness.engine("0")
    response = _apply(harness, mode="observe", kvLoadFailure=action("fail"))
    assert [(f.field, f.new_value) for f in response.engines[0].fields] == [
        ("observed.kvLoadFailure.action", "fail")
    ]


def test_warnings_tell_what_a_change_will_not_do(harness: AdminHarness) -> None:
    """No engine, a field that an engine does not know, a field that another policy gives."""
    assert list(_apply(harness, "early").warnings) == [
        "policy early selects no known engine; it applies when one connects"
    ]
    harness.engine("0", supported=("kv_load_failure",))
    assert list(_apply(harness, "late", deferral={"maxStartWait": "1s"}).warnings) == [
        "engine 0 does not support spec.deferral and will refuse the policy",
        "engine 0: spec.kvLoadFailure.action is set by policy early, which ranks higher",
    ]
    trial = _apply(harness, "trial", mode="observe", priority=200, peerQuarantine={"failures": 3})
    assert trial.warnings[0] == (
        "spec.peerQuarantine has no effect in mode observe, which does not simulate it; try mode enforce on one engine"
    )


def test_ejection_is_for_a_relay(harness: AdminHarness) -> None:
    """Written at an agent it does nothing; an engine that knows no such section is sent nothing of it."""
    harness.engine("0", supported=("kv_load_failure",))
    done = _apply(harness, ejection={"action": "enforce"})
    assert list(done.warnings) == [
        "spec.ejection has no effect here: a relay goes by the policies of its --policy-source; write it there"
    ]
    assert [(field.field, field.new_value) for field in done.engines[0].fields] == [
        ("kvLoadFailure.action", "recompute")
    ]
    # Alone it is nothing that an engine could have: it does not wait for one.
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TransferPolicy",
        "metadata": {"name": "alone"},
    }
    manifest = json.dumps(document | {"spec": {"ejection": {"action": "observe"}}})
    harness.stub.ApplyPolicy(admin.ApplyPolicyRequest(manifest_json=manifest, all=True, author="me"))
    found = harness.stub.ListPolicies(admin.ListPoliciesRequest(name="alone")).policies[0]
    assert (found.engines_selected, found.engines_in_force) == (1, 1)
    assert not harness.stub.ListAudit(admin.ListAuditRequest(actions=["eject", "eject-off"])).entries
    (entry,) = harness.stub.ListAudit(admin.ListAuditRequest(name="alone")).entries
    found = harness.stub.ListAudit(admin.ListAuditRequest(name="alone", actions=["eject", entry.action]))
    assert list(found.entries) == [entry]


def test_warnings_tell_what_a_connector_cannot_do(harness: AdminHarness) -> None:
    """The warning follows the engine's reported connector; a policy that sets no such field gets none."""
    harness.engine("0")
    source = harness.source("0")
    harness.snapshot(
        source, Snapshot(engine=EngineFacts(kv_connector="LMCacheMPConnector", kv_role="kv_both"))
    )
    asked = list(_apply(harness, deferral={"maxTransferWait": "1s"}).warnings)
    assert [each.partition(" ")[0] for each in asked] == ["engine", "engine"]
    assert "where a request has run on a load that failed, it fails" in asked[0]
    assert "spec.deferral.maxTransferWait ends requests that wait for loads of LMCacheMPConnector" in asked[1]
    assert list(_apply(harness, "other", kvLoadFailure=action("fail"), priority=200).warnings) == []


@pytest.mark.parametrize(
    "spec", [{"kvLoadFailure": action("fail")}, {"mode": "observe"}, {"selector": {"models": []}}]
)
def test_a_policy_for_every_engine_has_to_be_confirmed(harness: AdminHarness, spec: dict[str, Any]) -> None:
    """An empty selector is refused without ``all``, whatever it sets."""
    everywhere = {"selector": {}, **spec}
    manifest_json = json.dumps(document("p", **everywhere))
    assert _fails(harness.stub.ApplyPolicy, admin.ApplyPolicyRequest(manifest_json=manifest_json)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        _EVERYWHERE,
    )
    assert harness.store.policies() == ()
    assert _apply(harness, everywhere=True, **everywhere).result == "created"


def test_errors_have_their_status(harness: AdminHarness) -> None:
    """Each kind of error, once, with its sentence."""
    _apply(harness)
    stub = harness.stub
    good = json.dumps(document("p", **_DECODE, kvLoadFailure=action("auto")))
    for call, request, status in (
        (stub.ApplyPolicy, admin.ApplyPolicyRequest(manifest_json="{}"), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.ApplyPolicy, admin.ApplyPolicyRequest(manifest_json=good, if_generation=7), grpc.StatusCode.ABORTED),
        (stub.DeletePolicy, admin.DeletePolicyRequest(name="x"), grpc.StatusCode.NOT_FOUND),
        (stub.ListPolicies, admin.ListPoliciesRequest(name="x"), grpc.StatusCode.NOT_FOUND),
        (stub.GetEffectivePolicy, admin.GetEffectivePolicyRequest(key={"engine": "9"}), grpc.StatusCode.NOT_FOUND),
        (stub.RollbackPolicy, admin.RollbackPolicyRequest(name="p"), grpc.StatusCode.NOT_FOUND),
        (stub.WatchRollout, admin.WatchRolloutRequest(store_generation=9), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.ListEngines, admin.ListEnginesRequest(selector={"labels": "a b"}), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.ListEvents, admin.ListEventsRequest(kinds=["x"]), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.SetPaused, admin.SetPausedRequest(selector={"labels": "no=body"}), grpc.StatusCode.NOT_FOUND),
        (stub.GetTrace, admin.GetTraceRequest(request_id="none"), grpc.StatusCode.NOT_FOUND),
        (stub.Explain, admin.GetTraceRequest(request_id="none"), grpc.StatusCode.NOT_FOUND),
        (stub.Backup, admin.BackupRequest(path="x"), grpc.StatusCode.FAILED_PRECONDITION),
    ):  # fmt: skip
        code, details = _fails(call, request)
        assert code is status, (request, details)
        assert details


def test_the_effective_policy_has_its_schedule_and_where_it_comes_from(harness: AdminHarness) -> None:
    """The answer has the values in force, the policies that set them, and the schedule."""
    harness.engine("0")
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    _apply(harness, "base", kvLoadFailure={"action": "recompute", "maxRecomputeTokens": 5})
    _apply(harness, "overlay", priority=200, expiresAt=ends, kvLoadFailure=action("fail"))
    effective = harness.stub.GetEffectivePolicy(admin.GetEffectivePolicyRequest(key={"engine": "0"}))
    assert json.loads(effective.spec_json) == {"kvLoadFailure": {"action": "fail", "maxRecomputeTokens": 5}}
    assert {(f.field, f.new_policy) for f in effective.fields} == {
        ("kvLoadFailure.action", "overlay"),
        ("kvLoadFailure.maxRecomputeTokens", "base"),
    }
    assert [json.loads(step.spec_json)["kvLoadFailure"]["action"] for step in effective.schedule] == [
        "fail",
        "recompute",
    ]
    assert effective.hash == effective.schedule[0].hash == harness.feed.wanted(EngineKey("", "0"))


def test_policies_say_in_how_many_engines_they_are_in_force(harness: AdminHarness) -> None:
    """Each policy counts the engines in force among those that it selects."""
    harness.engine("0")
    refusing = harness.engine("1", refuse=lambda push: "no" if push.schedule else "")
    harness.engine("2", role="prefill")
    _apply(harness)
    assert _rollout(harness).done
    policy = harness.stub.ListPolicies(admin.ListPoliciesRequest(name="p")).policies[0]
    assert (policy.engines_selected, policy.engines_in_force, policy.generation, policy.author) == (
        2,
        1,
        1,
        "me",
    )
    harness.hang_up(refusing)


def test_a_policy_that_has_expired_or_is_outranked_is_in_force_nowhere(harness: AdminHarness) -> None:
    """It counts no engine, whatever is in force there."""
    harness.engine("0")
    _apply(harness)
    _apply(harness, "outranked", priority=1)
    soon = datetime.now(UTC) + timedelta(seconds=5)
    _apply(harness, "short", expiresAt=soon.isoformat(), ecLoadFailure=action("fail"))
    assert _rollout(harness).done

    def in_force() -> dict[str, int]:
        policies = harness.stub.ListPolicies(admin.ListPoliciesRequest()).policies
        return {policy.name: policy.engines_in_force for policy in policies}

    wait_until(lambda: in_force() == {"p": 1, "outranked": 0, "short": 0}, "the short one ends")


def test_a_rollout_names_the_engines_that_accepted_and_refused(harness: AdminHarness) -> None:
    """With hash, text and field, for the selected engines."""
    harness.engine("0", tier="a")
    harness.engine("1", tier="b", refuse=lambda push: "not with me" if push.schedule else "")
    generation = _apply(harness).store_generation
    last = _rollout(harness, store_generation=generation)
    assert last.done
    assert [(e.key.engine, e.state, e.error, e.field) for e in last.engines] == [
        ("0", "acknowledged", "", ""),
        ("1", "refused", "not with me", "kvLoadFailure.action"),
    ]
    assert last.engines[0].hash == harness.feed.wanted(EngineKey("", "0"))
    only = _rollout(harness, store_generation=generation, selector={"labels": "tier=a"})
    assert [engine.key.engine for engine in only.engines] == ["0"]


def test_rollback_and_audit(harness: AdminHarness) -> None:
    """The audit log has author, action, reason and both generations."""
    _apply(harness)
    _apply(harness, kvLoadFailure=action("auto"))
    stub = harness.stub
    back = stub.RollbackPolicy(admin.RollbackPolicyRequest(name="p", author="you", reason="worse"))
    assert (back.result, back.generation) == ("changed", 3)
    stub.DeletePolicy(admin.DeletePolicyRequest(name="p", author="you", reason="enough"))
    entries = stub.ListAudit(admin.ListAuditRequest(name="p")).entries
    assert [(e.action, e.author, e.reason, e.old_generation, e.new_generation) for e in entries] == [
        ("delete", "you", "enough", 3, 4),
        ("rollback", "you", "worse", 2, 3),
        ("apply", "me", "", 1, 2),
        ("apply", "me", "", 0, 1),
    ]
    assert entries[1].new_hash == entries[3].new_hash != entries[1].old_hash
    assert len(stub.ListAudit(admin.ListAuditRequest(limit=2)).entries) == 2


def test_a_pause_is_followed_into_the_engines(harness: AdminHarness) -> None:
    """Acknowledged by each; one that is resumed alone is resumed."""
    harness.engine("0")
    harness.engine("1")
    stub = harness.stub
    last = list(stub.SetPaused(admin.SetPausedRequest(paused=True, author="me", reason="incident")))[-1]
    assert (last.done, [engine.state for engine in last.engines]) == (True, ["acknowledged"] * 2)
    resumed = admin.SetPausedRequest(selector={"engines": [{"engine": "1"}]}, paused=False, author="me")
    last = list(stub.SetPaused(resumed))[-1]
    assert [(engine.key.engine, engine.state) for engine in last.engines] == [("1", "acknowledged")]
    assert harness.pauses.is_paused(EngineKey("", "0"))
    assert not harness.pauses.is_paused(EngineKey("", "1"))
    assert not harness.pauses.is_paused(EngineKey("", ""))
    names = [(entry.action, entry.name) for entry in stub.ListAudit(admin.ListAuditRequest()).entries]
    assert names == [("resume", "engine 1"), ("pause", "all engines")]


@pytest.mark.parametrize(
    ("paused", "progress"),
    [
        (True, ["1 of 3 processes are passive", "2 of 3 processes are passive"]),
        (False, ["1 of 3 processes are active", "2 of 3 processes are active"]),
    ],
    ids=["pause", "resume"],
)
def test_a_pause_and_its_end_wait_for_every_process(
    harness: AdminHarness, paused: bool, progress: list[str]
) -> None:
    """The scheduler's answer is not enough: its workers and the front end hear of it on streams of their own."""
    harness.heeding = False
    core, worker = harness.source("0"), harness.source("0", process="worker")
    front_end = harness.source("", process="api")
    harness.disconnect(harness.source("0", process="worker", rank=1, epoch=77))
    harness.engine("0")
    harness.run(harness.pauses.set(None, not paused, author="me", which="all engines"))
    for source in (worker, front_end):
        harness.snapshot(source, Snapshot(paused=not paused))
    harness.snapshot(core, Snapshot(paused=paused))
    rollout = harness.stub.SetPaused(admin.SetPausedRequest(paused=paused, timeout={"seconds": 60}))
    said = _waits_for(rollout, progress[0])
    harness.snapshot(worker, Snapshot(paused=paused))
    said += _waits_for(rollout, progress[1])
    assert {state for state, _ in said} == {"waiting"}
    harness.snapshot(front_end, Snapshot(paused=paused))
    last = list(rollout)[-1]
    assert (last.done, [engine.state for engine in last.engines]) == (True, ["acknowledged"])


def test_a_pause_waits_for_what_was_recorded_before_it(harness: AdminHarness) -> None:
    """A process that still holds entries would raise counters after the command has ended."""
    harness.heeding = False
    core = harness.source("0")
    harness.engine("0")
    harness.snapshot(core, Snapshot(paused=True, emitter={"pending_entries": 1}))
    rollout = harness.stub.SetPaused(admin.SetPausedRequest(paused=True, timeout={"seconds": 60}))
    _waits_for(rollout, "0 of 1 process is passive")
    harness.snapshot(core, Snapshot(paused=True))
    assert list(rollout)[-1].done


def test_a_pause_waits_for_a_snapshot_from_after_it(harness: AdminHarness) -> None:
    """The last one may tell of an earlier pause."""
    harness.heeding = False
    core = harness.source("0")
    harness.engine("0")
    harness.snapshot(core, Snapshot(paused=True))
    harness.registry.kill_switch_changed(core.epoch)
    rollout = harness.stub.SetPaused(admin.SetPausedRequest(paused=True, timeout={"seconds": 60}))
    _waits_for(rollout, "0 of 1 process is passive")
    harness.snapshot(core, Snapshot(paused=True))
    assert list(rollout)[-1].done


def test_a_pause_that_ends_before_every_process_follows_is_not_in_force(harness: AdminHarness) -> None:
    """By its ttl or another operator's resume; active processes are no success of the pause."""
    harness.heeding = False
    core = harness.source("0")
    harness.engine("0")
    rollout = harness.stub.SetPaused(admin.SetPausedRequest(paused=True, timeout={"seconds": 60}))
    _waits_for(rollout, "0 of 1 process is passive")
    harness.run(harness.pauses.set(None, False, author="other", which="all engines"))
    harness.snapshot(core, Snapshot(paused=False))
    (engine,) = list(rollout)[-1].engines
    assert (engine.state, engine.error.partition(",")[0]) == ("refused", "the pause ended")


def test_a_pause_with_a_ttl_has_author_reason_and_expiry(harness: AdminHarness) -> None:
    """In the progress, in the list of engines, and in the audit log; without a ttl it has no end."""
    harness.source("0")
    harness.engine("0")
    stub = harness.stub
    for ttl in ({"seconds": 600}, None):
        request = admin.SetPausedRequest(paused=True, author="me", reason="INC-1", ttl=ttl)
        (item,) = list(stub.SetPaused(request))[-1].engines
        (engine,) = stub.ListEngines(admin.ListEnginesRequest()).engines
        assert item.pause == engine.pause
        assert (engine.pause.author, engine.pause.reason) == ("me", "INC-1")
        span = engine.pause.until.ToNanoseconds() - engine.pause.since.ToNanoseconds()
        assert (span if engine.pause.HasField("until") else None) == (600 * 10**9 if ttl else None)
    list(stub.SetPaused(admin.SetPausedRequest()))
    assert not stub.ListEngines(admin.ListEnginesRequest()).engines[0].HasField("pause")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"paused": True, "ttl": {"seconds": 90_000}}, "the ttl of a pause is 25h; give one from 1s to 24h"),
        ({"paused": True, "ttl": {}}, "the ttl of a pause is 0s; give one from 1s to 24h"),
        ({"paused": False, "ttl": {"seconds": 60}}, "a resume has no ttl; give one to a pause"),
    ],
)
def test_a_ttl_out_of_range_is_refused(harness: AdminHarness, request_: dict[str, Any], error: str) -> None:
    """Nothing is paused."""

    def call(request: admin.SetPausedRequest) -> list[admin.Rollout]:
        return list(harness.stub.SetPaused(request))

    assert _fails(call, admin.SetPausedRequest(**request_)) == (grpc.StatusCode.INVALID_ARGUMENT, error)
    assert not harness.pauses.is_paused(EngineKey("", "0"))


def test_a_pause_of_one_engine_does_not_wait_for_the_front_end_of_two(harness: AdminHarness) -> None:
    """The front end serves the other one, and stays active."""
    harness.heeding = False
    harness.snapshot(harness.source("", process="api"), Snapshot())
    for engine in ("0", "1"):
        harness.snapshot(harness.source(engine), Snapshot(paused=engine == "0"))
        harness.engine(engine)
    request = admin.SetPausedRequest(selector={"engines": [{"engine": "0"}]}, paused=True)
    assert list(harness.stub.SetPaused(request))[-1].done


def _waits_for(rollout: Any, error: str) -> list[tuple[str, str]]:
    """Read *rollout* until its only engine waits with *error*; return the states and errors read."""
    said: list[tuple[str, str]] = []
    for message in rollout:
        assert not message.done, said
        (engine,) = message.engines
        said.append((engine.state, engine.error))
        if engine.error == error:
            return said
    raise AssertionError(f"no {error!r} in {said}")


def test_a_pause_holds_in_an_engine_that_refuses_its_policy(harness: AdminHarness) -> None:
    """The engine is paused at once; the answer reports its refusal too."""
    harness.source("0")
    harness.engine("0", refuse=lambda push: "not with me" if push.schedule else "")
    _apply(harness)
    last = list(harness.stub.SetPaused(admin.SetPausedRequest(paused=True, author="me")))[-1]
    assert [(e.state, e.error) for e in last.engines] == [("acknowledged", "not with me")]
    (engine,) = harness.stub.ListEngines(admin.ListEnginesRequest()).engines
    assert (engine.paused, engine.in_sync) == (True, False)
