"""A shell beside the recorded incidents: ``agentctl … --bundle NAME.bundle`` reads the one of that name."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.incidents.table import INCIDENTS, RECORDED

if TYPE_CHECKING:
    from collections.abc import Iterator

STORY: Final = "recorded"
"""The word behind ``console`` of a block that reads recorded incidents."""

_BUNDLE = re.compile(r"([a-z-]+)\.bundle")


class RecordedStage:
    """Types reading commands; what they print on standard error, the age of the bundle, is not shown."""

    def run(self, command: str) -> list[str]:
        """Run a command line as a person would type it in the directory of the bundles; returns the lines that it prints."""
        program, *arguments = shlex.split(command, comments=True)
        assert program == "agentctl", command
        paths = [self._path(argument) for argument in arguments]
        environment = {"NO_COLOR": "1", "TZ": "UTC", "AGENTCTL_ADDRESS": ""}
        ran = CliRunner(env=environment).invoke(cli, paths, catch_exceptions=False)
        return [line.rstrip().replace(f"{RECORDED}/", "") for line in ran.stdout.rstrip().splitlines()]

    def _path(self, argument: str) -> str:
        found = _BUNDLE.fullmatch(argument)
        return str(INCIDENTS[found[1]].path) if found else argument


@contextmanager
def recorded_stage() -> Iterator[RecordedStage]:
    """Give the shell, as wide as a person's terminal."""
    with mock.patch.dict("os.environ", {"COLUMNS": "160"}):
        yield RecordedStage()
