"""Errors of agentctl, and the connection options in the command lines that they name."""

from __future__ import annotations

import os
import shlex

import click
from click.core import ParameterSource
from penstock.agent.views import text
from penstock.agent.views.command_lines import PROGRAM, PROGRAMS, hinted

VARIABLE = "AGENTCTL_TRACEBACK"
"""With any value such an error is raised as it is, for a report; tests have it, so that they see what failed."""

_META = "penstock.answering"
_PROGRAM_META = "penstock.hints"
_CONNECTION_OPTIONS = ("bundle", "context", "address", "tls_ca", "tls_cert", "tls_key", "tls_server_name")


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


def note_program(context: click.Context) -> str:
    """Return the program with the connection options of the command line, and keep it for :func:`hinted_here`.

    Options from the environment are left out; those behind the command count before those in front of it.
    """
    root = context.find_root()
    given = {
        name: root.params[name]
        for name in _CONNECTION_OPTIONS
        if root.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if context is not root:
        given |= {
            name: context.params[name]
            for name in ("bundle", "context", "address")
            if context.params.get(name)
        }
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    name = root.info_name if root.info_name in PROGRAMS else PROGRAM
    program = context.meta[_PROGRAM_META] = " ".join([name, *map(shlex.quote, words)])
    return program


def hinted_here(text: str, context: click.Context | None) -> str:
    """Return *text* as :func:`hinted`, with the program of the running command."""
    return text if context is None else hinted(text, context.meta.get(_PROGRAM_META, PROGRAM))
