"""Errors of commands and their exit codes: 1 failed or not found, 2 usage error."""

from __future__ import annotations

import click


class FailedError(click.ClickException):
    """The command failed; exit code 1."""

    exit_code = 1


class UnreachableError(FailedError):
    """The agent does not answer, or closed the connection; a retry may succeed."""


class RefusedError(FailedError):
    """The agent refused the call."""


class NotUnderstoodError(FailedError):
    """An answer passed all checks and made the command raise what nobody has foreseen."""


class UnknownCallError(RefusedError):
    """Whoever answers does not know the call: an older agent, or the engines' socket."""


class ComparisonError(FailedError):
    """A comparison failed; exit code 2, as 1 says that there are differences."""

    exit_code = 2


class UsageError(click.ClickException):
    """The command line is wrong; exit code 2."""

    exit_code = 2
