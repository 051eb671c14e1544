"""An admin service, and the command line that talks to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.admin_server import AdminHarness, running_admin
from tests.support.agent.agent import short_directory
from tests.support.agent.quiet import quiet_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    Agentctl = Callable[..., Result]


@pytest.fixture
def harness() -> Iterator[AdminHarness]:
    """Serve the admin service over an empty journal."""
    with quiet_logs(), short_directory() as directory, running_admin(directory) as running:
        yield running


@pytest.fixture
def agentctl(harness: AdminHarness) -> Agentctl:
    """Return what runs a command line against the service."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner(env={"AGENTCTL_ADDRESS": harness.address}).invoke(cli, arguments, input=stdin)

    return run
