"""``agentctl top``: a live screen on a terminal, else repeated plain output."""

from __future__ import annotations

import os
import shutil
import sys
import time
from itertools import count as endless
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.connection.endpoint import bundle_of
from penstock.agent.ctl.errors import UnreachableError
from penstock.agent.ctl.options import DURATION, engine_selector, with_client, with_selector
from penstock.agent.ctl.printing import say
from penstock.agent.ctl.top.layout import as_text, screen
from penstock.agent.ctl.top.poll import Poller, poll_agent
from penstock.agent.ctl.top.view import SORTS, History
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

_PLAIN_WIDTH = 120
_PLAIN_HEIGHT = 200


@click.command()
@with_selector
@click.option("--interval", type=DURATION, metavar="DURATION", help="Refresh interval.  [default: 2s]")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Sort order.")
@click.option("--plain", is_flag=True, help="Print repeatedly, as without a terminal.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="With plain output: exit after N samples."
)
@with_client
def top(
    client: Client, selector: str, interval: timedelta | None, sort: str, plain: bool, count: int | None
) -> None:
    """Show engines and peers live: transfer rates, in flight, failures, deferrals, policy.

    Keys: q quits, s changes the order, up and down scroll.
    """
    seconds = max(interval.total_seconds(), 0.2) if interval is not None else 2.0
    chosen = engine_selector(selector)
    # An unreachable agent is an error before the screen is set up.
    client.call("GetStatus", admin.GetStatusRequest())
    if bundle_of(click.get_current_context()):
        # It does not change.
        plain, count = True, 1
    if plain or count is not None or not _can_draw():
        _print(client, chosen, sort, seconds, count)
        return
    from penstock.agent.ctl.top.screen import run  # noqa: PLC0415  (it needs curses)

    with Poller(lambda: poll_agent(client, chosen), seconds) as poller:
        run(poller, sort, colour=click.get_current_context().color is not False)


def _can_draw() -> bool:
    """Return whether this is a terminal that curses supports."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        import curses  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return False
    try:
        curses.setupterm()
    except curses.error:
        return False
    return True


def _print(
    client: Client, selector: admin.EngineSelector, sort: str, interval: float, count: int | None
) -> None:
    history = History()
    width = shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
    for number in endless() if count is None else range(count):
        if number:
            time.sleep(interval)
            say("")
        sample = poll_agent(client, selector)
        history.add(sample)
        if sample.error and number + 1 == count:
            raise UnreachableError(sample.error)
        lines = screen(history, sort, 0, width, _PLAIN_HEIGHT, sample.now)
        # The last line lists the keys.
        say(*as_text(lines[:-1]).split("\n"))
