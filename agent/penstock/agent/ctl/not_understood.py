"""What an answer does that nobody has foreseen, as a sentence instead of a traceback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.agent.ctl.errors import NotUnderstoodError
from penstock.agent.views import text

if TYPE_CHECKING:
    import click

VARIABLE = "AGENTCTL_TRACEBACK"
"""With any value such an error is raised as it is, for a report; tests have it, so that they see what failed."""

_META = "penstock.answering"


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
