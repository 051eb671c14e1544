"""What does not happen, as ``describe engine``, ``doctor`` and ``debug stacks`` say it."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from penstock.agent.admin.calls import engines as engine_calls
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.errors import RefusedError
from penstock.agent.model import EngineKey
from penstock.agent.stalls import KINDS, Stall, StallKind
from penstock.proto.v1.policy_pb2 import StackDump

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_KEY = EngineKey("", "0")


def _dump() -> StackDump:
    dump = StackDump(process="engine-core", pid=42, time_unix_nano=1, threads_left_out=1)
    thread = dump.threads.add(name="MainThread", frames_left_out=2)
    thread.frames.add(function="Core.step", file="core.py", line=7, module="vllm.v1.engine.core")
    return dump


def test_a_stall_is_a_condition_and_a_finding(harness: AdminHarness, agentctl: Agentctl) -> None:
    """With its kind, its sentence and the next command, as the diagnosis has them; without one neither is there."""
    harness.source("0")
    assert "call_stuck" not in agentctl("describe", "engine", "0").stdout
    stall = Stall(StallKind.CALL_STUCK, 1, time.time() - 100, "worker 1 has been in Some.save for 100 s")
    harness.stalls = {_KEY: (stall,)}
    said = agentctl("describe", "engine", "0").stdout
    assert re.search(
        r"Conditions:\n  call_stuck \(certain\).*: engine 0: worker 1 has been in Some.save for 100 s\n", said
    )
    doctor = agentctl("doctor")
    assert doctor.exit_code == 1
    assert "wrong  call_stuck: engine 0: worker 1 has been in Some.save for 100 s" in doctor.stdout
    assert "→ agentctl debug stacks 0; agentctl describe engine 0" in doctor.stdout
    (engine,) = json.loads(agentctl("get", "engines", "-o", "json").stdout)["engines"]
    assert engine["stalls"][0]["kind"] == "call_stuck"


def test_every_stall_is_judged(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Doctor says what the agent saw not happen, whatever it is, as it has no words of its own for it."""
    harness.source("0")
    harness.stalls = {
        _KEY: tuple(Stall(kind, 1, time.time() - 100, f"what is {kind.value}") for kind in KINDS)
    }
    said = agentctl("doctor").stdout
    assert [kind for kind in KINDS if f"what is {kind.value}" not in said] == []


def test_without_a_diagnosis_the_stalls_are_shown_as_they_were_seen(
    harness: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that makes none has facts all the same."""
    harness.source("0")
    harness.stalls = {_KEY: (Stall(StallKind.CALL_STUCK, 1, time.time() - 100, "it hangs"),)}
    call = Client.call

    def refuse(self: Client, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "Diagnose":
            raise RefusedError("the log cannot be read")
        return call(self, method, *arguments, **named)

    monkeypatch.setattr(Client, "call", refuse)
    assert "Stalled:\n  call_stuck since 100s ago: it hangs\n" in agentctl("describe", "engine", "0").stdout


def test_stacks(harness: AdminHarness, agentctl: Agentctl) -> None:
    """One line a frame, the innermost first; the question is in the audit log."""
    harness.engine("0", stacks=_dump())
    said = agentctl("debug", "stacks", "0", "--reason", "it hangs")
    assert said.stdout == (
        "engine-core (pid 42): 1 thread\n"
        "  MainThread:\n"
        "    vllm.v1.engine.core.Core.step (core.py:7)\n"
        "    2 outer frames not shown\n"
        "1 more thread not shown\n"
    )
    found = json.loads(agentctl("debug", "stacks", "0", "-o", "json").stdout)
    assert found["processes"][0]["threads"][0]["frames"][0]["line"] == 7
    entries = json.loads(agentctl("get", "audit", "-o", "json").stdout)["entries"]
    assert {(entry["action"], entry["name"]) for entry in entries} == {("debug-stacks", "engine 0")}
    assert "it hangs" in {entry.get("reason") for entry in entries}


def test_an_engine_that_refuses(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Its sentence is what the operator reads."""
    harness.engine(
        "0", stacks=StackDump(refusal="this engine does not show its stacks: PENSTOCK_ALLOW_STACKS=1")
    )
    said = agentctl("debug", "stacks", "0")
    assert said.exit_code == 1
    assert "engine 0: this engine does not show its stacks: PENSTOCK_ALLOW_STACKS=1" in said.stderr


def test_an_engine_that_does_not_answer(
    harness: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one ignores the question; one that is away is not asked; an unknown one is not there."""
    monkeypatch.setattr(engine_calls, "STACKS_SECONDS", 0.2)
    engine = harness.engine("0")
    assert "has not answered within 0.2 s" in agentctl("debug", "stacks", "0").stderr
    harness.hang_up(engine)
    assert "is not connected to the policy feed" in agentctl("debug", "stacks", "0").stderr
    assert "there is no engine '7'" in agentctl("debug", "stacks", "7").stderr
