"""``agentctl inject-fault`` and ``agentctl drill``: fault drills."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.commands.orders.options import follow_order, with_order, with_timeout
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import (
    DRILL,
    DURATION,
    PEER,
    author,
    duration_message,
    engine_selector,
    with_client,
)
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.parsing import DRILL_MODES, SLOW
from penstock.agent.views import orders as order_rows
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.orders import drill_words
from penstock.proto.names import number
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import FAILURE_MODE_UNSPECIFIED, Channel, FailureMode

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey

_MODES = tuple(dict.fromkeys(mode for modes in DRILL_MODES.values() for mode in modes))
_BY_CHANNEL = "; ".join(f"{channel}: {', '.join(modes)}" for channel, modes in DRILL_MODES.items())
_TTL = timedelta(seconds=60)


@click.group(cls=LazyGroup)
def drill() -> None:
    """List and stop fault drills; 'agentctl inject-fault' starts one."""


@drill.command("list")
@with_listing
@with_client
def list_drills(client: Client, style: ListStyle) -> None:
    """List running drills and their state in each engine."""

    def fetch() -> Listing:
        response = client.call("ListDrills", admin.ListDrillsRequest())
        return Listing(
            "drill",
            order_rows.drills(response.drills, current_time()),
            [item.id for item in response.drills],
            lambda: as_json_values(response),
            "drills",
            "no drill is running",
        )

    show_listing(fetch, style)


@drill.command()
@click.argument("ids", nargs=-1, type=DRILL, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Stop all running drills.")
@with_timeout
@with_output()
@with_client
def stop(client: Client, ids: tuple[str, ...], everything: bool, timeout: timedelta, output: str) -> None:
    """Stop drills before their time to live ends."""
    if bool(ids) == everything:
        raise UsageError("give the IDs of drills ('agentctl drill list' shows them), or --all")
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
            client, item.spec.selector, timeout, what, "drill stopped", quiet=quiet, ends=True
        )
        del item.engines[:]
        item.engines.extend(last.engines)
    if quiet:
        show(admin.ListDrillsResponse(drills=stopped), output)


@click.command("inject-fault")
@click.option(
    "--mode",
    type=click.Choice(_MODES),
    required=True,
    metavar="MODE",
    help=f"Failure mode. {_BY_CHANNEL}.",
)
@click.option(
    "--channel",
    type=click.Choice(tuple(DRILL_MODES)),
    help="Channel.  [default: the first that has the mode]",
)
@click.option("--rate", type=float, default=0.2, show_default=True, help="Share of attempts to hit, up to 1.")
@click.option("--peer", type=PEER, default="", help="Only transfers with this peer, as host:port.")
@click.option("--delay", type=DURATION, help="With --mode slow: the delay, at most 60s.")
@click.option("--ttl", type=DURATION, default=_TTL, help="Time to live, at most 1h.  [default: 60s]")
@click.option("--all", "everywhere", is_flag=True, help="Confirm that no selector means all engines.")
@with_order
@with_client
def inject_fault(
    client: Client,
    mode: str,
    channel: str | None,
    rate: float,
    peer: str,
    delay: timedelta | None,
    ttl: timedelta,
    everywhere: bool,
    engines: tuple[EngineKey, ...],
    selector: str,
    reason: str,
    timeout: timedelta,
    output: str,
) -> None:
    """Inject a fault in running engines. Requests are really recomputed, failed or delayed.

    Needs engines started with PENSTOCK_ALLOW_FAULTS=1. Events, metrics and spans are marked (label rehearsal).
    """
    if not (engines or selector or everywhere):
        raise UsageError("name engines, give --selector, or confirm with --all")
    channel = channel or next(name for name, modes in DRILL_MODES.items() if mode in modes)
    if mode not in DRILL_MODES[channel]:
        raise UsageError(
            f"mode {mode} cannot be injected in channel {channel}; use one of {', '.join(DRILL_MODES[channel])}"
        )
    if (mode == SLOW) != (delay is not None):
        raise UsageError("--mode slow needs --delay, such as 2s; other modes take none")
    request = admin.StartDrillRequest(
        selector=engine_selector(selector, engines),
        channel=number(Channel, channel),  # type: ignore[arg-type]
        mode=FAILURE_MODE_UNSPECIFIED if mode == SLOW else number(FailureMode, mode),  # type: ignore[arg-type]
        rate=rate,
        peer=peer,
        ttl=duration_message(ttl),
        author=author(),
        reason=reason,
    )
    if delay is not None:
        request.delay.FromTimedelta(delay)
    drill = client.call("StartDrill", request)
    quiet = output != "table"
    if not quiet:
        ends = client.hinted(f"'agentctl drill stop {drill.id}' stops it")
        say(f"drill {drill.id} started: {drill_words(drill)}; {ends}")
    last = follow_order(
        client, request.selector, timeout, f"drill {drill.id}", "running the drill", quiet=quiet
    )
    if quiet:
        del drill.engines[:]
        drill.engines.extend(last.engines)
        show(drill, output)
