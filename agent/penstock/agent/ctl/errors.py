"""Errors of commands and their exit codes, 1 failed or not found, 2 usage error; what nobody has foreseen is a sentence, too."""

from __future__ import annotations

import os

import click
from penstock.agent.views import text

VARIABLE = "AGENTCTL_TRACEBACK"
"""With any value such an error is raised as it is, for a report; tests have it, so that they see what failed."""

_META = "penstock.answering"


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


def note_answering(context: click.Context, who: str) -> None:
    """Keep *who* answers the command line of *context*, in words, for :func:`not_understood`."""
    context.meta[_META] = who


def not_understood(error: Exception, context: click.Context) -> NotUnderstoodError | None:
    """Return the sentence about an *error* that nobody has foreseen.

    None where nobody was asked, for what the system refuses (a full disk), and with :data:`VARIABLE`.
    """
    who = context.meta.get(_META)
    if who is None or isinstance(error, OSError) or os.environ.get(VARIABLE):
        return None
    what = text.one_line(f"{type(error).__name__}: {error}", 160)
    return NotUnderstoodError(
        f"{who} answered something that agentctl does not understand ({what}); see what serves it, and upgrade the "
        f"older of agent and agentctl; for a report, {VARIABLE}=1 shows where it failed"
    )
