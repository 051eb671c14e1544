"""``agentctl doctor``: its exit code, and what it prints with and without a diagnosis."""

from __future__ import annotations

import importlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.errors import FailedError, RefusedError, UnknownCallError, UnreachableError
from penstock.proto.v1.snapshot_pb2 import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_WITHOUT = [
    {"name": "handshake_queue", "lost": "time in the handshake\nqueue", "reason": "no _executor"},
    {"name": "lease_expiry", "lost": "why a lease ended", "reason": "no _reqs_to_send"},
]


def test_the_command_exits_with_what_it_found(harness: AdminHarness, agentctl: Agentctl) -> None:
    """Exit codes 0 and 1; problems are printed last; JSON has the same findings."""
    core = harness.source("0")
    harness.engine("0")
    hook = {"name": "scheduler", "installed": True, "missing_parts": _WITHOUT}
    facts = {"model": "tiny"}
    harness.snapshot(core, Snapshot(time_unix_nano=time.time_ns(), engine=facts, hooks=[hook]))
    well = agentctl("doctor")
    assert (well.exit_code, well.stdout.splitlines()[-1]) == (0, "no problems")
    assert (
        "note   engine 0: engine-core: hook scheduler works without: time in the handshake queue, "
        in well.stdout
    )
    late = {"name": "num_notifications_after_expiry", "upstream": 2, "seen": 2}
    harness.snapshot(
        core, Snapshot(time_unix_nano=time.time_ns(), engine=facts, hooks=[hook], upstream_counts=[late])
    )
    assert "engine 0: vLLM's own counters agree: 2 late reads" in agentctl("doctor").stdout
    bad = {"name": "eplb", "reason": "no such method"}
    harness.snapshot(core, Snapshot(time_unix_nano=time.time_ns(), engine=facts, hooks=[hook, bad]))
    ill = agentctl("doctor")
    assert ill.exit_code == 1
    *_, what, advice, summary = ill.stdout.splitlines()
    assert what == "wrong  engine 0: engine-core: hook eplb is not installed: no such method"
    assert advice.startswith("       → ")
    assert summary.endswith(("problem", "problems"))
    document = json.loads(agentctl("doctor", "-o", "json").stdout)
    assert document["healthy"] is False
    assert {"level", "subject", "what", "advice"} == set(document["findings"][0])


def test_the_command_lists_what_is_in_force_for_a_while(harness: AdminHarness, agentctl: Agentctl) -> None:
    """It is no problem: as many are counted as before."""
    harness.source("0")
    harness.engine("0")
    before = agentctl("doctor").stdout.splitlines()
    change = ("--kv-load-failure", "recompute", "--priority", "950", "--ttl", "90m")
    assert agentctl("set-policy", "glass", "--all", *change).exit_code == 0
    after = agentctl("doctor").stdout.splitlines()
    assert any(line.startswith("note   policy glass: break-glass, ends in ") for line in after), after
    assert after[-1] == before[-1] == "1 problem"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (UnknownCallError("no such call"), "note   transfers: whether anything is wrong with them is not known: the agent makes"),
        (RefusedError("the log is damaged"), "wrong  transfers: whether anything is wrong with them is not known: the log is"),
        (UnreachableError("not in time"), "wrong  transfers: whether anything is wrong with them is not known: not in"),
    ],
)  # fmt: skip
def test_the_command_without_a_diagnosis(
    harness: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch, error: FailedError, what: str
) -> None:
    """The other findings stand, and it is not called ok."""
    harness.source("0")
    call = Client.call

    def refuse(self: Client, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "Diagnose":
            raise error
        return call(self, method, *arguments, **named)

    monkeypatch.setattr(Client, "call", refuse)
    said = agentctl("doctor").stdout
    assert what in said
    assert "engine 0: " in said
    assert not re.search(r"ok +transfers", said)


@pytest.mark.parametrize(("first", "is_noted"), [(-60, False), (30, True)])
def test_the_agents_clock_is_compared_with_the_time_of_its_answer(
    first: int, is_noted: bool, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that takes long, for the trace backend's sake, is no difference between clocks."""
    moments = iter([time.time() + first, time.time() + 60])
    command = importlib.import_module("penstock.agent.ctl.commands.inspect.diagnose")
    monkeypatch.setattr(command, "current_time", lambda: next(moments))
    assert ("its clock is" in agentctl("doctor").stdout) is is_noted
