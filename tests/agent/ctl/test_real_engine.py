"""agentctl, a real agent and a real EngineCore runtime: orders of an operator are in force in the engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.ctl.options import author
from penstock.instrumentation.core import constants
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import Runtime
from penstock.rules.policy import Action, Deferral, KvLoadFailure, PeerQuarantine

from tests.support.agent.agent import AgentProcess, running_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

_PEER = "prefill-0:5600"
_FIELDS = ("kv_load_failure", "deferral", "peer_quarantine")
_REQUEST = "cmpl-calm-0-aaaaaaaa"
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
    """Peer and time are in the engine before the command returns."""
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
    """The drill runs as ordered; a repeated push does not extend it."""
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
    """The engine's own clock ends the drill."""
    assert _agentctl(agent, "inject-fault", "0", "--mode", "setup", "--ttl", "30s").exit_code == 0
    orders = engine.policy.orders
    agent.kill()
    try:
        assert len(orders.drills_at(time.monotonic_ns())) == 1
        assert orders.drills_at(orders.received_ns + 31 * _SECOND) == ()
    finally:
        agent.start()


def test_an_engine_without_leave_is_left_alone(agent: AgentProcess) -> None:
    """Without PENSTOCK_ALLOW_FAULTS the engine refuses and names the variable; its policy is unchanged."""
    runtime = _engine(agent, allow_faults=False)
    try:
        refused = _agentctl(agent, "inject-fault", "--mode", "transfer", "--all")
        assert refused.exit_code == 1
        assert "engine 0 does not allow faults: not started with PENSTOCK_ALLOW_FAULTS=1" in refused.stderr
        assert runtime.policy.orders.drills == ()
    finally:
        runtime.stop(5.0)


def test_every_field_that_a_flag_sets_is_in_force(agent: AgentProcess, engine: Runtime) -> None:
    """The fields have the engine's units before the command returns."""
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


def test_a_decision_names_the_policy_that_made_it(agent: AgentProcess, engine: Runtime) -> None:
    """Every command and the agent's log have name, generation and author, also after deletion and restart."""
    put = _agentctl(agent, "set-policy", "calm", "-l", "role=decode", "--kv-load-failure", "fail", "--wait")
    assert put.exit_code == 0, put.output
    named = f"calm (generation 1, by {author()})"
    assert put.stdout.splitlines()[-1].endswith(f"in force: {named}")
    assert engine.policy.current.name_of("kvLoadFailure.action") == "policy calm, generation 1"
    fields = {
        "channel": constants.CHANNEL_KV,
        "outcome": constants.OUTCOME_FAILED,
        "decided_by": constants.DECIDED_BY_POLICY,
        "mode": constants.FAILURE_MODE_HANDSHAKE,
        "error_type": constants.ERROR_TYPE_REFUSED,
        "peer": {"address": _PEER},
        "attempt": 1,
        "tokens_recomputed": 400,
        "policy_hash": engine.policy.current.hash,
        "reason": "kvLoadFailure.action: fail",
    }
    scheduler = constants.COMPONENT_SCHEDULER
    engine.emit_event("load_outcome", fields, component=scheduler, request_id=_REQUEST)
    wait_until(lambda: "kv failed by policy calm/1 after" in _events(agent, "load_outcome"), "the outcome")
    wait_until(lambda: "vllm's own → calm/1 (push)" in _events(agent, "policy_applied"), "the policy's event")
    wait_until(lambda: " calm/1 " in _agentctl(agent, "get", "engines").stdout, "the list")
    doctor = _agentctl(agent, "doctor")
    said = f"policy calm (generation 1 by {author()}) says kvLoadFailure.action: fail"
    assert f"wrong  policy_fails_loads: {said}" in doctor.stdout
    assert "delete policy calm; " in doctor.stdout
    assert f"by policy {named}" in _agentctl(agent, "describe", "engine", "0").stdout
    wait_until(
        lambda: any(
            record["event"] == "policy acknowledged" and record["policy"] == named
            for record in agent.records()
        ),
        "the log's line",
    )
    again = _agentctl(agent, "set-policy", "calm", "--reason", "INC-42", "--wait")
    assert again.exit_code == 0, again.output
    assert engine.policy.current.name_of("kvLoadFailure.action") == "policy calm, generation 2"
    assert _agentctl(agent, "delete", "policy", "calm", "--wait").exit_code == 0
    closing = {"prompt_tokens": 412, "finish_reason": "error"}
    engine.emit_event("request_closed", closing, component=scheduler, request_id=_REQUEST)
    wait_until(lambda: _REQUEST in _events(agent, "request_closed"), "the end of the request")
    agent.stop()
    agent.start()
    told = _agentctl(agent, "explain", _REQUEST).stdout
    assert f"400 tokens not recomputed, decided by policy {named}" in told
    spans = json.loads(_agentctl(agent, "trace", _REQUEST, "-o", "json").stdout)["spans"]
    attributes = next(span["attributes"] for span in spans if span["name"] == "penstock.request")
    assert {key: value for key, value in attributes.items() if key.startswith("penstock.policy")} == {
        "penstock.policy_hash": fields["policy_hash"],
        "penstock.policy.name": "calm",
        "penstock.policy.generation": "1",
        "penstock.policy.author": author(),
    }


def _events(agent: AgentProcess, kind: str) -> str:
    return _agentctl(agent, "get", "events", "--kind", kind).stdout


def test_what_a_paused_engine_has_is_not_in_force(agent: AgentProcess, engine: Runtime) -> None:
    """Command, list and metrics report it as not in force; resume puts it in force."""
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
    """The first one keeps its policy; metrics and the list of engines have the first one only."""
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
