"""The engine's core against the real agent: what both parts promise together."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import Runtime
from penstock.proto.v1 import admin_pb2, admin_pb2_grpc
from penstock.rules.policy import NO_POLICY, Action

from tests.support.agent.agent import AgentProcess, running_agent, wait_until
from tests.support.agent.entries import acknowledged, emit_failure, emit_transfer
from tests.support.engine.held_step import hold_step
from tests.support.engine.runtime_threads import exporter_of, policy_client_of
from tests.support.policy.clients import make_client
from tests.support.seconds import SecondsClock
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELDS = ("kv_load_failure.action",)


@pytest.fixture(scope="module")
def real() -> Iterator[AgentProcess]:
    """Run an agent for all tests of this file."""
    with running_agent() as process:
        yield process


@pytest.fixture
def engine(real: AgentProcess) -> Iterator[Runtime]:
    """Make the runtime of an EngineCore that talks to it."""
    runtime = Runtime()
    runtime.configure(Settings(endpoint=real.listen, labels={"role": "decode"}))
    runtime.identify(process="engine-core", key="0", model="tiny", vllm_version="0.32.0")
    yield runtime
    runtime.stop(5.0)


@pytest.fixture
def admin(real: AgentProcess) -> Iterator[Any]:
    """Open the agent's admin socket; the policy that a test applies goes with it."""
    with grpc.insecure_channel(real.admin) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        yield stub
        for policy in stub.ListPolicies(admin_pb2.ListPoliciesRequest(), timeout=60).policies:
            stub.DeletePolicy(admin_pb2.DeletePolicyRequest(name=policy.name, author="test"), timeout=60)


def manifest(spec: dict[str, Any]) -> str:
    """Return a policy for decode servers."""
    return json.dumps(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": "decode-default"},
            "spec": {"selector": {"matchLabels": {"role": "decode"}}, **spec},
        }
    )


def apply(admin: Any, spec: dict[str, Any]) -> Any:
    """Apply a policy and return the last word of its rollout."""
    applied = admin.ApplyPolicy(
        admin_pb2.ApplyPolicyRequest(manifest_json=manifest(spec), author="test"), timeout=60
    )
    watch = admin_pb2.WatchRolloutRequest(store_generation=applied.store_generation)
    watch.timeout.FromSeconds(60)
    *_, rollout = admin.WatchRollout(watch, timeout=90)
    return rollout


def test_counters_over_a_crash(real: AgentProcess, engine: Runtime) -> None:
    """What is emitted before, while and after the agent is killed is counted once."""
    for number in range(700):
        emit_transfer(engine, f"r-{number}")
        if number == 300:
            wait_until(lambda: acknowledged(engine), "the first part is acknowledged")
            real.kill()
        if number == 500:
            real.start()
        emit_failure(engine, f"f-{number}")
    wait_until(lambda: acknowledged(engine), "everything is acknowledged")
    wait_until(lambda: real.metric("penstock_transfers_total", result="ok") == 700, "700 transfers")
    assert real.metric("penstock_transfer_failures_total", peer="10.0.0.7:5600") == 700
    wait_until(lambda: real.metric("penstock_engine_connected", engine="0") == 1, "the engine is connected")


def entries(admin: Any) -> Any:
    """Return what the agent says of the only source that is connected."""
    (source,) = [
        source
        for each in admin.ListEngines(admin_pb2.ListEnginesRequest(), timeout=60).engines
        for source in each.sources
        if source.connected
    ]
    return source


def test_every_entry_is_accounted_for(real: AgentProcess, engine: Runtime, admin: Any) -> None:
    """After an outage that was too long for the outbox: events are kept, samples are lost, and all adds up."""
    engine.start()
    wait_until(lambda: real.metric("penstock_unaccounted_entries", engine="0") == 0, "the first account")
    exporter_of(engine)._outbox._limit = 64 << 10
    real.kill()
    try:
        for number in range(20):
            for sample in range(500):
                emit_transfer(engine, f"s-{number}-{sample}")
            emit_failure(engine, f"e-{number}")
            wait_until(lambda: engine.emitter.longest() < 512, "full batches are sealed")
    finally:
        real.start()
    wait_until(lambda: acknowledged(engine), "everything is acknowledged")

    def settled() -> bool:
        emitter = entries(admin).emitter
        return emitter.produced_entries == 10_020 and not emitter.pending_entries

    wait_until(settled, "a snapshot with the account")
    source = entries(admin)
    assert source.lost_entries > 1_000
    assert source.stored_entries + source.lost_entries == 10_020
    assert source.unaccounted_entries == 0
    assert {drop.kind for drop in source.drops} == {"transfer_sample"}
    assert real.metric("penstock_unaccounted_entries", engine="0") == 0


def test_policy_is_in_force_when_the_agent_says_so(engine: Runtime, admin: Any) -> None:
    """A policy applied on the agent is in force here before the rollout says so, and goes with it."""
    engine.start_policy(FIELDS)
    wait_until(lambda: policy_client_of(engine)._heard, "the first push")
    rollout = apply(admin, {"kvLoadFailure": {"action": "recompute"}})
    assert [item.state for item in rollout.engines] == ["acknowledged"]
    in_force = engine.policy.current.kv_load_failure
    assert in_force is not None
    assert in_force.action is Action.RECOMPUTE
    assert engine.policy.current.hash == rollout.engines[0].hash
    admin.DeletePolicy(admin_pb2.DeletePolicyRequest(name="decode-default", author="test"), timeout=60)
    wait_until(lambda: engine.policy.current == NO_POLICY, "vLLM's own configuration")


def test_policy_that_the_engine_cannot_follow(engine: Runtime, admin: Any) -> None:
    """A field that no hook acts upon is refused by its path, and the operator sees it."""
    engine.start_policy(FIELDS)
    wait_until(lambda: policy_client_of(engine)._heard, "the first push")
    rollout = apply(admin, {"telemetry": {"traceSampleRatio": 0.5}})
    (item,) = rollout.engines
    assert (item.state, item.field) == ("refused", "telemetry.traceSampleRatio")
    assert engine.policy.current is NO_POLICY


def test_pause_reaches_both_streams(engine: Runtime, admin: Any) -> None:
    """The kill switch on the agent makes hooks passive; lifted, they are active again."""
    engine.start_policy(FIELDS)
    wait_until(lambda: policy_client_of(engine)._heard, "the first push")
    for paused in (True, False):
        request = admin_pb2.SetPausedRequest(paused=paused, author="test")
        request.timeout.FromSeconds(60)
        *_, rollout = admin.SetPaused(request, timeout=90)
        assert [item.state for item in rollout.engines] == ["acknowledged"]
        wait_until(lambda want=paused: engine.active is not want, "the hooks follow")


def test_a_pause_ends_by_itself_also_after_a_restart_of_the_agent(
    real: AgentProcess, engine: Runtime, admin: Any
) -> None:
    """The engine is active again at its time; the metric and the audit log say so."""
    engine.start_policy(FIELDS)
    wait_until(lambda: policy_client_of(engine)._heard, "the first push")
    # A pause waits for the processes that are connected; its metric is about them.
    wait_until(lambda: real.metric("penstock_engine_connected", engine="0") == 1, "the engine is connected")
    request = admin_pb2.SetPausedRequest(paused=True, author="test")
    request.timeout.FromSeconds(60)
    request.ttl.FromSeconds(3600)
    *_, rollout = admin.SetPaused(request, timeout=90)
    assert (rollout.done, engine.active) == (True, False)
    expiry = "penstock_engine_pause_expiry_timestamp_seconds"
    assert real.metric("penstock_engine_paused") == 1
    assert real.metric(expiry) == rollout.engines[0].pause.until.ToNanoseconds() / 1e9
    request.ttl.FromSeconds(1)
    next(iter(admin.SetPaused(request, timeout=90)))
    real.kill()
    real.start()
    wait_until(lambda: engine.active, "the hooks are active")
    wait_until(lambda: real.metric("penstock_engine_paused") == 0, "the metric says so")
    assert real.metric(expiry) is None
    newest = admin.ListAudit(admin_pb2.ListAuditRequest(limit=1), timeout=60).entries[0]
    assert (newest.action, newest.author) == ("resume", "penstock-agent")


def _strike(agent: AgentProcess, sig: int) -> None:
    """Kill the agent, or stop it where it stands."""
    assert agent.process is not None
    if sig == signal.SIGKILL:
        agent.kill()
    else:
        stop(agent.process.pid)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_expiry_needs_no_agent(real: AgentProcess, engine: Runtime, admin: Any, sig: int) -> None:
    """A policy for a time ends by the engine's own clock with the agent gone; the agent hears of it when it is back."""
    clock = SecondsClock()
    assert engine.settings is not None
    client = make_client(engine, engine.settings, FIELDS, clock)
    engine._policy_client = client
    client.start()
    wait_until(lambda: client._heard, "the first push")
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    apply(admin, {"kvLoadFailure": {"action": "recompute"}, "expiresAt": ends})
    in_force = engine.policy.current.hash
    assert in_force
    _strike(real, sig)
    try:
        clock.now += 3_000
        client.wake()
        assert engine.policy.current.hash == in_force
        clock.now += 700
        client.wake()
        wait_until(lambda: engine.policy.current == NO_POLICY, "vLLM's own configuration")
    finally:
        if sig == signal.SIGKILL:
            real.start()
        else:
            assert real.process is not None
            real.process.send_signal(signal.SIGCONT)
    if sig == signal.SIGKILL:
        # By the agent's clock it has not ended: the engine gets it again, for the time that is left there.
        wait_until(lambda: engine.policy.current.hash == in_force, "the policy again")
    wait_until(
        lambda: real.metric("penstock_policy_updates_total", result="accepted", source="expiry"),
        "the expiry is counted",
    )


def test_every_update_is_counted(real: AgentProcess, engine: Runtime, admin: Any) -> None:
    """Acceptance, refusal, pause and resume are events that outlive the agent, and a counter by result and source."""

    def count(result: str, source: str) -> float:
        return real.metric("penstock_policy_updates_total", result=result, source=source) or 0.0

    kinds = [("accepted", "push"), ("rejected", "push"), ("accepted", "pause"), ("accepted", "resume")]
    before = [count(*kind) for kind in kinds]
    engine.start_policy(FIELDS)
    wait_until(lambda: policy_client_of(engine)._heard, "the first push")
    apply(admin, {"kvLoadFailure": {"action": "fail"}})
    rollout = apply(admin, {"telemetry": {"traceSampleRatio": 0.5}})
    for paused in (True, False):
        request = admin_pb2.SetPausedRequest(paused=paused, author="test")
        request.timeout.FromSeconds(60)
        list(admin.SetPaused(request, timeout=90))
    wait_until(lambda: acknowledged(engine), "all events are acknowledged")
    real.kill()
    real.start()
    wait_until(
        lambda: [count(*kind) - was for kind, was in zip(kinds, before, strict=True)] == [1, 1, 1, 1],
        "each update is counted once",
    )
    events = admin_pb2.ListEventsRequest(kinds=["policy_applied"], limit=20)
    texts = [item.event.policy_applied.error for item in admin.ListEvents(events, timeout=60).events]
    assert rollout.engines[0].error in texts


def test_engine_is_in_sync_only_once_it_has_its_policy(
    real: AgentProcess, engine: Runtime, admin: Any
) -> None:
    """Also one that comes back without it: what the agent says of it comes after its ACK."""
    engine.start_policy(FIELDS)
    wait_until(lambda: policy_client_of(engine)._heard, "the first push")
    apply(admin, {"kvLoadFailure": {"action": "recompute"}})
    wanted = engine.policy.current.hash
    engine.stop(5.0)
    successor = Runtime()
    successor.configure(Settings(endpoint=real.listen, labels={"role": "decode"}))
    successor.identify(process="engine-core", key="0", model="tiny", vllm_version="0.32.0")
    end = hold_step(successor)
    try:
        successor.start_policy(FIELDS)
        wait_until(lambda: policy_client_of(successor)._nonce, "the push has come")

        def state() -> tuple[str, bool]:
            (found,) = admin.ListEngines(admin_pb2.ListEnginesRequest(), timeout=60).engines
            return found.wanted_hash, found.in_sync

        wait_until(lambda: state()[0] == wanted, "the agent knows what it is to have")
        assert state() == (wanted, False)
        end()
        wait_until(lambda: state() == (wanted, True), "in sync")
        assert successor.policy.current.hash == wanted
    finally:
        end()
        successor.stop(5.0)


_LIFE = """
import sys
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.core.settings import Settings
from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_failure

runtime = Runtime()
runtime.configure(Settings(endpoint=sys.argv[1], labels={}))
runtime.identify(process="engine-core", key="killed")
runtime.start_policy(("kv_load_failure.action",))
emit_failure(runtime, "r")
wait_until(lambda: acknowledged(runtime) and runtime._policy_client._heard, "both streams are taken")
print("ready", flush=True)
sys.stdin.read()
"""


def life(real: AgentProcess) -> subprocess.Popen[str]:
    """Start an EngineCore's process and wait until the agent has taken both of its streams."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LIFE, real.listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
    except BaseException:
        process.kill()
        raise
    return process


def test_an_engine_that_is_killed_and_started_again_at_once(real: AgentProcess) -> None:
    """Its key is its own, under another secret: twice within a grace."""
    for count in (1, 2, 3):
        process = life(real)
        process.kill()
        process.communicate(timeout=60)
        wait_until(
            lambda: real.metric("penstock_transfer_failures_total", engine="killed") == count,  # noqa: B023
            "each life is counted",
        )


def test_two_processes_under_one_name(real: AgentProcess, engine: Runtime, admin: Any) -> None:
    """The second is kept out of both streams while the first is there, and comes in when it has gone."""
    engine.start_policy(FIELDS)
    emit_failure(engine, "first")
    wait_until(lambda: acknowledged(engine), "the first is taken")
    held = real.metric("penstock_agent_refused_messages_total", reason="held") or 0
    second = Runtime()
    second.configure(Settings(endpoint=real.listen, labels={"role": "decode"}))
    second.identify(process="engine-core", key="0", model="other", vllm_version="0.32.0")
    second.start_policy(FIELDS)
    emit_failure(second, "second")
    try:
        wait_until(
            lambda: (real.metric("penstock_agent_refused_messages_total", reason="held") or 0) >= held + 2,
            "it is refused",
        )
        rollout = apply(admin, {"kvLoadFailure": {"action": "fail"}})
        assert [row.state for row in rollout.engines if row.key.engine == "0"] == ["acknowledged"]
        in_force = engine.policy.current.kv_load_failure
        assert in_force is not None
        assert in_force.action is Action.FAIL
        assert second.policy.current == NO_POLICY
        status = admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=60)
        assert "PENSTOCK_SERVER" in status.last_refusal
        engine.stop(5.0)
        wait_until(lambda: acknowledged(second), "the second is taken")
    finally:
        second.stop(5.0)
