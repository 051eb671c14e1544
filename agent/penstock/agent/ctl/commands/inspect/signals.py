"""``agentctl signals``: what engines did in the last 15 minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import nothing_fits
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import ENGINE, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import say_table, show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.agent.views.signals import signal_rows
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey


@click.command()
@click.argument("keys", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@with_output(wide=True)
@with_client
def signals(client: Client, keys: tuple[EngineKey, ...], selector: str, output: str) -> None:
    """Show what engines did together in the last 15 minutes, minute by minute.

    Requests that ended (each engine counts its own part), time to first token and its longest gate, the queue, bytes in and
    out, shares that failed or computed again, held share of the cache. '-o json' has slots of five seconds.
    """
    if keys and selector:
        raise UsageError("names and --selector exclude each other; give one of them")
    answer = client.call("GetSignals", admin.GetSignalsRequest(selector=engine_selector(selector, keys)))
    if output not in {"table", "wide"}:
        show(answer, output)
        return
    rows = signal_rows(answer, current_time())
    if rows.rows:
        shown = rows if output == "wide" else rows.narrow()
        say_table(shown.headers, shown.rows)
    elif answer.engines:
        say("nothing is known of the last 15 minutes: no engine was seen", err=True)
    else:
        say(nothing_fits(selector, "there are no engines"), err=True)
    if answer.engines_left_out:
        left = text.count(answer.engines_left_out, "engine")
        say(f"{left} of {answer.engines} are not counted: an agent has room for 128", err=True)
