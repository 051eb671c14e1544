"""``agentctl page``: the page of a bundle, in a browser on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.bundle_client import open_page
from penstock.agent.ctl.command_hints import note_program
from penstock.agent.ctl.connection import bundle_of
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.options import DURATION, with_place
from penstock.agent.ctl.render import say

if TYPE_CHECKING:
    from datetime import timedelta

_MAX_PORT = 65_535
_TURN_SECONDS = 0.5


@click.command()
@click.option(
    "--since", type=DURATION, help="Window before the bundle that the verdict covers.  [default: 10m]"
)
@click.option(
    "--port", type=click.IntRange(0, _MAX_PORT), default=0, help="Port of 127.0.0.1.  [default: a free one]"
)
@with_place
@click.pass_context
def page(context: click.Context, /, since: timedelta | None, port: int, **_: object) -> None:
    """Serve the page of a bundle on this machine, until interrupted, and print its address.

    It is read-only and shows the bundle's time. An agent and a relay serve their page themselves, at their --page.
    """
    path = bundle_of(context)
    if not path:
        raise UsageError(
            "agentctl serves the page of a bundle; give --bundle FILE (an agent and a relay serve theirs at --page)"
        )
    seconds = None if since is None else since.total_seconds()
    say(open_page(context, path, note_program(context), port=port, since=seconds))
    while True:
        time.sleep(_TURN_SECONDS)
