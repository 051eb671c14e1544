"""``agentctl bill``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.bill import group_lines
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.console import say
from penstock.agent.ctl.formats import is_table, with_output
from penstock.agent.ctl.options import (
    DURATION,
    duration_message,
    engine_selector,
    with_client,
    with_selector,
)
from penstock.agent.ctl.output import say_table, show, warn_unreadable
from penstock.agent.views.bill import bill_table, notes, window_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

# Seconds; the agent reads at most 6, and a relay waits for many.
_DEADLINE = 30.0


@click.command()
@click.option(
    "--since",
    type=DURATION,
    default="24h",
    show_default=True,
    help="Add up the costs of the last 10m, 2h, ...",
)
@click.option(
    "--by",
    type=click.Choice(["peer", "policy", "engine"]),
    default=None,
    help="One line for each of these; the default is a line for each engine, peer and policy.",
)
@with_selector
@with_output(wide=True)
@with_client
def bill(client: Client, since: timedelta, by: str | None, selector: str, output: str) -> None:
    """Add up what failed loads, waits and recomputation cost: tokens, and seconds of prefill and of waits.

    Prefill seconds are the tokens that were computed again, times what a token takes in the same engine in that time;
    they are unknown until enough requests have shown that.
    """
    request = admin.GetBillRequest(since=duration_message(since), selector=engine_selector(selector))
    found: admin.Bill = client.call("GetBill", request, _DEADLINE)
    if by is not None:
        lines = group_lines(found.lines, by)
        del found.lines[:]
        found.lines.extend(lines)
    if not is_table(output):
        show(found, output)
        return
    warn_unreadable(found.unreadable_batches)
    if found.truncated:
        say(
            f"only the newest {found.entries} entries were added up; give a shorter --since",
            err=True,
        )
    window = window_words(found, since.total_seconds(), current_time())
    if not found.lines:
        where = " of the selected engines" if selector else ""
        say(f"no failed load, wait or recomputation{where} is recorded {window}", err=True)
        return
    table = bill_table(found, by)
    shown = table if output == "wide" else table.narrow()
    say_table(shown.headers, shown.rows)
    say("", f"Costs {window}.", *notes(found))
