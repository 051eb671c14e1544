"""The engine's core against the real agent: what both parts promise together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.instrumentation.policy_model import NO_POLICY, Action
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.settings import Settings
from penstock.proto.v1 import admin_pb2, admin_pb2_grpc

from tests.support.agent import AgentProcess, running_agent, wait_until
from tests.support.entries import acknowledged, emit_failure, emit_transfer

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
        for policy in stub.ListPolicies(admin_pb2.ListPoliciesRequest(), timeout=20).policies:
            stub.DeletePolicy(admin_pb2.DeletePolicyRequest(name=policy.name, author="test"), timeout=20)


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
        admin_pb2.ApplyPolicyRequest(manifest_json=manifest(spec), author="test"), timeout=20
    )
    watch = admin_pb2.WatchRolloutRequest(store_generation=applied.store_generation)
    watch.timeout.FromSeconds(20)
    *_, rollout = admin.WatchRollout(watch, timeout=30)
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


def test_policy_is_in_force_when_the_agent_says_so(engine: Runtime, admin: Any) -> None:
    """A policy applied on the agent is in force here before the rollout says so, and goes with it."""
    engine.start_policy(FIELDS)
    wait_until(lambda: engine._policy_client._heard, "the first push")
    rollout = apply(admin, {"kvLoadFailure": {"action": "recompute"}})
    assert [item.state for item in rollout.engines] == ["acknowledged"]
    assert engine.policy.current.kv_load_failure.action is Action.RECOMPUTE
    assert engine.policy.current.hash == rollout.engines[0].hash
    admin.DeletePolicy(admin_pb2.DeletePolicyRequest(name="decode-default", author="test"), timeout=20)
    wait_until(lambda: engine.policy.current == NO_POLICY, "vLLM's own configuration")


def test_policy_that_the_engine_cannot_follow(engine: Runtime, admin: Any) -> None:
    """A field that no hook acts upon is refused by its path, and the operator sees it."""
    engine.start_policy(FIELDS)
    wait_until(lambda: engine._policy_client._heard, "the first push")
    rollout = apply(admin, {"telemetry": {"traceSampleRatio": 0.5}})
    (item,) = rollout.engines
    assert (item.state, item.field) == ("refused", "telemetry.traceSampleRatio")
    assert engine.policy.current is NO_POLICY


def test_pause_reaches_both_streams(engine: Runtime, admin: Any) -> None:
    """The kill switch on the agent makes hooks passive; lifted, they are active again."""
    engine.start_policy(FIELDS)
    wait_until(lambda: engine._policy_client._heard, "the first push")
    for paused in (True, False):
        request = admin_pb2.SetPausedRequest(paused=paused, author="test")
        request.timeout.FromSeconds(20)
        *_, rollout = admin.SetPaused(request, timeout=30)
        assert [item.state for item in rollout.engines] == ["acknowledged"]
        wait_until(lambda want=paused: engine.active is not want, "the hooks follow")
