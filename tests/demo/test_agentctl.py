"""When the demos and tests run a command of agentctl again."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from demo.common import agent

_ADDRESS = "unix:///run/penstock/admin.sock"
_BUSY = f"agentctl: the agent at {_ADDRESS} did not answer in time; see its log"


@pytest.mark.parametrize(
    ("said", "code", "runs"),
    [
        (_BUSY, 1, 2),
        (
            "wrong  peer_times_out: peer 10.0.0.1:5600 did not answer in time, and was not tried in the 6m since",
            1,
            1,
        ),
        ("ok", 0, 1),
    ],
    ids=["a busy agent", "what doctor says of a peer", "an answer"],
)
def test_only_a_busy_agent_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, said: str, code: int, runs: int
) -> None:
    """What an answer says of others is an answer."""
    answers = [(said, code), ("ok", 0)]
    asked: list[Any] = []

    def run_command(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        output, status = answers[len(asked) - 1]
        return subprocess.CompletedProcess(command, status, output, "")

    monkeypatch.setattr(agent, "run_command", run_command)
    monkeypatch.setattr(agent, "_PAUSE_SECONDS", 0.0)
    done = agent.agentctl(_ADDRESS, ("doctor",), subprocess.STDOUT, columns=120)
    assert (done.stdout, len(asked)) == (answers[runs - 1][0], runs)
