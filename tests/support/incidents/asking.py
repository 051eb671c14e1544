"""Runs ``agentctl`` on a recorded incident, as a person who was sent the bundle would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

if TYPE_CHECKING:
    from click.testing import Result

    from tests.support.incidents.table import Incident


def asked(incident: Incident, *arguments: str) -> Result:
    """Run a command on the bundle of *incident*."""
    environment = {"NO_COLOR": "1", "TZ": "UTC", "AGENTCTL_ADDRESS": ""}
    return CliRunner(env=environment).invoke(
        cli, ["--bundle", str(incident.path), *arguments], catch_exceptions=False
    )
