"""``agentctl`` directly against an agent whose answers are no messages: a sentence for each command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.agent import short_directory
from tests.support.fleet.hostile_agent import METHODS, running_hostile_agent

COMMANDS = (
    "get engines",
    "get events",
    "get pairs",
    "diagnose",
    "explain r",
    "trace r",
    "bill",
    "watch --count 1",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_that_is_no_message(command: str) -> None:
    """It says whose answer to what, and what to do."""
    with short_directory() as directory, running_hostile_agent(f"unix://{directory}/bad.sock") as bad:
        bad.answers.update(dict.fromkeys(METHODS, b"\xff" * 50))
        environment = {"AGENTCTL_ADDRESS": f"unix://{directory}/bad.sock"}
        said = CliRunner(env=environment).invoke(cli, command.split())
    assert isinstance(said.exception, SystemExit)
    assert "answers otherwise than agents do: its answer to " in said.stderr
    assert "deserializing" not in said.output
