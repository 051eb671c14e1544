"""agentctl, a real agent and the core of a real engine: what an operator orders is in force over there."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.instrumentation.core import constants
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.resilience.policy import Action, Deferral, KvLoadFailure, PeerQuarantine
from penstock.instrumentation.runtime import Runtime

from tests.support.agent.agent import AgentProcess, running_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

_PEER = "prefill-0:5600"
_FIELDS = ("kv_load_failure", "deferral", "peer_quarantine")
_SECOND = 1_000_000_000
_RECOMPUTE = ("set-policy", "p", "-l", "role=decode", "--kv-load-failure", "recompute", "--wait")
# Another EngineCore of the same name; ends with its standard input.
_TWIN = """
import sys
from penstock.instrumentation.runtime import Runtime
from penstock.instrumentation.core.settings import Settings
runtime = Runtime()
runtime.configure(Settings(endpoint=sys.argv[1], labels={"role": "decode"}))
runtime.identify(process="engine-core", key="0", model="tiny", vllm_version="0.32.0")
runtime.start_policy(["kv_load_failure"])
sys.stdin.read()
runtime.stop(5.0)
"""


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent for all tests of this file."""
    with running_agent() as running:
        yield running


def _engine(agent: AgentProcess, *, allow_faults: bool) -> Runtime:
    runtime = Runtime()
    runtime.configure(Settings(endpoint=agent.listen, labels={"role": "decode"}, allow_faults=allow_faults))
    runtime.identify(process="engine-core", key="0", model="tiny", vllm_version="0.32.0")
    runtime.start_policy(_FIELDS)
    client = runtime._policy_client
    assert client is not None
    wait_until(lambda: client._heard, "the first push")
    return runtime


@pytest.fixture
def engine(agent: AgentProcess) -> Iterator[Runtime]:
    """Make the runtime of an EngineCore that allows faults."""
    runtime = _engine(agent, allow_faults=True)
    yield runtime
    _agentctl(agent, "drill", "stop", "--all")
    runtime.stop(5.0)


def _agentctl(agent: AgentProcess, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--address", agent.admin, *arguments])


def test_a_quarantine_and_its_lift_reach_the_engine(agent: AgentProcess, engine: Runtime) -> None:
    """With peer and time, before the command says so."""
    added = _agentctl(agent, "quarantine", "add", _PEER, "--ttl", "10m", "-l", "role=decode")
    assert added.exit_code == 0, added.output
    (order,) = engine.policy.orders.quarantines
    assert (order.peer, order.quarantined) == (_PEER, True)
    assert order.ttl_ns is not None
    assert 500 * _SECOND < order.ttl_ns <= 600 * _SECOND
    assert _agentctl(agent, "quarantine", "lift", _PEER, "-l", "role=decode").exit_code == 0
    (order,) = engine.policy.orders.quarantines
    assert (order.peer, order.quarantined) == (_PEER, False)


def test_a_drill_runs_in_the_engine_until_it_is_stopped(agent: AgentProcess, engine: Runtime) -> None:
    """As it was ordered; a repeated push does not prolong it."""
    began = _agentctl(
        agent, "inject-fault", "0", "--mode", "handshake", "--rate", "0.5", "--peer", _PEER, "--ttl", "5m"
    )
    assert began.exit_code == 0, began.output
    (drill,) = engine.policy.orders.drills
    assert (drill.channel, drill.mode, drill.rate, drill.peer) == (
        constants.CHANNEL_KV,
        constants.FAILURE_MODE_HANDSHAKE,
        0.5,
        _PEER,
    )
    assert 0 < drill.valid_for_ns <= 300 * _SECOND
    assert _agentctl(agent, "drill", "stop", drill.id).exit_code == 0
    assert engine.policy.orders.drills == ()


def test_a_drill_ends_by_itself_even_with_the_agent_dead(agent: AgentProcess, engine: Runtime) -> None:
    """The engine's own clock ends it."""
    assert _agentctl(agent, "inject-fault", "0", "--mode", "setup", "--ttl", "30s").exit_code == 0
    orders = engine.policy.orders
    agent.kill()
    try:
        assert len(orders.drills_at(time.monotonic_ns())) == 1
        assert orders.drills_at(orders.received_ns + 31 * _SECOND) == ()
    finally:
        agent.start()


def test_an_engine_without_leave_is_left_alone(agent: AgentProcess) -> None:
    """Refused with the variable's name; its policy is not touched."""
    runtime = _engine(agent, allow_faults=False)
    try:
        refused = _agentctl(agent, "inject-fault", "--mode", "transfer", "--all")
        assert refused.exit_code == 1
        assert "engine 0 does not allow faults: not started with PENSTOCK_ALLOW_FAULTS=1" in refused.stderr
        assert runtime.policy.orders.drills == ()
    finally:
        runtime.stop(5.0)


def test_every_field_that_a_flag_sets_is_in_force(agent: AgentProcess, engine: Runtime) -> None:
    """In the engine's own units, before the command says so."""
    result = _agentctl(
        agent,
        *("set-policy", "p", "-l", "role=decode", "--wait", "--kv-load-failure", "auto"),
        *("--kv-max-recompute-tokens", "4096", "--kv-recompute-budget", "20000", "--kv-over-budget", "fail"),
        *("--deferral-max-start-wait", "30s", "--deferral-max-transfer-wait", "5s"),
        *("--deferral-on-timeout", "recompute", "--quarantine-failures", "3", "--quarantine-window", "30s"),
        *("--quarantine-duration", "60s", "--quarantine-max-peers-percent", "50"),
    )
    assert result.exit_code == 0, result.output
    policy = engine.policy.current
    assert policy.kv_load_failure == KvLoadFailure(Action.AUTO, 4096, 20000, Action.FAIL)
    assert policy.deferral == Deferral(30.0, 5.0, Action.RECOMPUTE)
    assert policy.peer_quarantine == PeerQuarantine(3, 30.0, 60.0, 50)
    assert _agentctl(agent, "delete", "policy", "p", "--wait").exit_code == 0


def test_what_a_paused_engine_has_is_not_in_force(agent: AgentProcess, engine: Runtime) -> None:
    """Neither by the command, nor by the list, nor by the metrics; a resume puts it in force."""
    assert _agentctl(agent, "pause").exit_code == 0
    try:
        held = _agentctl(agent, *_RECOMPUTE)
        assert (held.exit_code, "engine 0 paused (would be " in held.stdout) == (1, True), held.output
        assert "0 is paused (would be " in held.stderr
        assert engine.policy.current.hash == ""
        wait_until(lambda: agent.metric("penstock_policy_in_sync", engine="0") == 0, "metrics say so")
        assert agent.metric("penstock_policy_info", engine="0", hash="none") == 1
        listed = _agentctl(agent, "get", "engines").stdout
        assert "paused (would be recompute)" in listed
    finally:
        assert _agentctl(agent, "resume").exit_code == 0
    assert engine.policy.current.kv_load_failure == KvLoadFailure(Action.RECOMPUTE)
    wait_until(lambda: agent.metric("penstock_policy_in_sync", engine="0") == 1, "metrics say so")
    assert _agentctl(agent, *_RECOMPUTE).exit_code == 0


def test_a_second_engine_core_of_one_name_is_refused(agent: AgentProcess, engine: Runtime) -> None:
    """The first one keeps its policy, and says so; metrics and the engine's list tell of nothing else."""
    command = [sys.executable, "-c", _TWIN, agent.listen]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as twin:
        try:
            refused = "penstock_agent_refused_messages_total"
            wait_until(lambda: (agent.metric(refused, reason="held") or 0) > 0, "the twin is refused")
            result = _agentctl(agent, *_RECOMPUTE)
            assert result.exit_code == 0, result.output
            assert "connected" in _agentctl(agent, "get", "engines").stdout
        finally:
            twin.communicate(timeout=60)
    assert engine.policy.current.kv_load_failure == KvLoadFailure(Action.RECOMPUTE)
