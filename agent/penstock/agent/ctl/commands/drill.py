"""``agentctl drill``: the rehearsals that are running."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.commands.get import show_table
from penstock.agent.ctl.commands.order_options import follow_order, with_timeout
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.name_arguments import DRILL
from penstock.agent.ctl.options import author, with_client, with_output
from penstock.agent.ctl.render import order_rows, say
from penstock.agent.ctl.render.output import show
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.client import Client


@click.group()
def drill() -> None:
    """See and stop rehearsals of faults; 'agentctl inject-fault' begins one."""


@drill.command("list")
@with_output(wide=True)
@with_client
def list_drills(client: Client, output: str) -> None:
    """List the rehearsals that have not ended, and where each engine stands."""
    response = client.call("ListDrills", admin.ListDrillsRequest())
    found = order_rows.drills(response.drills, time.time())
    show_table(response, found, output, "no drill is running")


@drill.command()
@click.argument("ids", nargs=-1, type=DRILL, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Stop all that are running.")
@with_timeout
@with_output()
@with_client
def stop(client: Client, ids: tuple[str, ...], everything: bool, timeout: timedelta, output: str) -> None:
    """End rehearsals before their time."""
    if bool(ids) == everything:
        raise UsageError("which drills? give their IDs ('agentctl drill list' shows them), or --all")
    if everything:
        ids = tuple(item.id for item in client.call("ListDrills", admin.ListDrillsRequest()).drills)
        if not ids:
            say("no drill is running", err=True)
    stopped = [
        client.call("StopDrill", admin.StopDrillRequest(id=drill_id, author=author())) for drill_id in ids
    ]
    quiet = output != "table"
    for item in stopped:
        if not quiet:
            say(f"drill {item.id} stopped")
        what = f"the end of drill {item.id}"
        last = follow_order(
            client, item.spec.selector, timeout, what, "no longer rehearsing", quiet=quiet, ends=True
        )
        del item.engines[:]
        item.engines.extend(last.engines)
    if quiet:
        show(admin.ListDrillsResponse(drills=stopped), output)
