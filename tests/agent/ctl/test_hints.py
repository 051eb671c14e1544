"""Command lines in messages reach the agent of the running command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from penstock.agent.ctl.errors import note_program
from penstock.agent.ctl.main import cli
from penstock.agent.views.command_lines import COMMANDS, hinted

if TYPE_CHECKING:
    from tests.support.agent.admin_server import AdminHarness


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("'agentctl get engines' lists them", "'P get engines' lists them"),
        ("agentctl resume 0; 'agentctl get audit' says who", "P resume 0; 'P get audit' says who"),
        ("stop one (agentctl drill stop)", "stop one (P drill stop)"),
        ("run agentctl as the agent's user", "run agentctl as the agent's user"),
        (
            "kubectl exec POD -c penstock -- agentctl doctor",
            "kubectl exec POD -c penstock -- agentctl doctor",
        ),
        ("the agent's agentctl getting", "the agent's agentctl getting"),
    ],
)
def test_commands_in_a_sentence(text: str, there: str) -> None:
    """Options are added to command lines only, and once."""
    assert hinted(text, "P") == there
    assert hinted(hinted(text, "agentctl --address x"), "agentctl --address y") == hinted(
        text, "agentctl --address x"
    )


def test_what_a_bundle_refuses_is_left_to_the_agent() -> None:
    """A person who reads a bundle types such a command where the agent is."""
    text = "agentctl get peers, agentctl drill list, then agentctl quarantine add P or agentctl drill stop"
    assert hinted(text, "agentctl --bundle b") == (
        "agentctl --bundle b get peers, agentctl --bundle b drill list, then agentctl quarantine add P or agentctl drill stop"
    )


def test_every_command_is_known() -> None:
    """``COMMANDS`` has every command of the root group."""
    names = [*cli.list_commands(None), *cli.hidden_commands]  # type: ignore[arg-type]
    assert sorted(names) == sorted(COMMANDS)


def test_the_address_that_was_typed_is_kept(harness: AdminHarness) -> None:
    """An address before or behind the command is added; one from the environment is not."""
    address = harness.address
    here = f"'agentctl --address {address} get engines' lists them\n"
    for arguments in (
        ["--address", address, "describe", "engine", "7"],
        ["describe", "engine", "7", "--address", address],
    ):
        result = CliRunner().invoke(cli, arguments)
        assert result.stderr == f"agentctl: there is no engine '7'; {here}"
    result = CliRunner(env={"AGENTCTL_ADDRESS": address}).invoke(cli, ["describe", "engine", "7"])
    assert result.stderr.endswith("'agentctl get engines' lists them\n")
    # What the agent itself says.
    result = CliRunner().invoke(cli, ["--address", address, "forget", "engine", "7"])
    assert (result.exit_code, result.stderr) == (1, f"agentctl: there is no engine '7'; {here}")


def test_an_agent_that_does_not_answer() -> None:
    """The hint to doctor, and doctor's advice, have the address."""
    address = "unix:///nowhere/admin.sock"
    result = CliRunner().invoke(cli, ["--address", address, "get", "engines"])
    assert f"'agentctl --address {address} doctor' says why" in result.stderr


def test_certificates_that_were_typed_are_kept() -> None:
    """TLS options are added, quoted where a shell needs it; the address behind the command counts."""
    typed = ["--address", "a:1", "--tls-ca", "my ca", "get", "engines"]
    with cli.make_context("agentctl", typed) as context:
        assert note_program(context) == "agentctl --address a:1 --tls-ca 'my ca'"
        behind = click.Context(click.Command("x"), parent=context)
        behind.params = {"address": "b:2", "context": None}
        assert note_program(behind) == "agentctl --address b:2 --tls-ca 'my ca'"
    with cli.make_context("kubectl penstock", ["--context", "c", "top"]) as context:
        assert note_program(context) == "kubectl penstock --context c"


def test_the_doctor_names_the_address(harness: AdminHarness) -> None:
    """Doctor's advice has the address, in every format."""
    source = harness.source("0")

    async def leave() -> None:
        harness.registry.disconnect(source.epoch)

    harness.run(leave())
    for output in ("table", "json"):
        result = CliRunner().invoke(cli, ["doctor", "--address", harness.address, "-o", output])
        assert f"agentctl --address {harness.address} forget engine 0" in result.stdout
