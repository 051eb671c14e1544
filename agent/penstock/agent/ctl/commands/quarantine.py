"""``agentctl quarantine``: which peers are cut off, and an operator's own word about one."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.get import show_table
from penstock.agent.ctl.commands.order_options import follow_order, with_engines, with_order
from penstock.agent.ctl.name_arguments import PEER
from penstock.agent.ctl.options import (
    DURATION,
    author,
    duration_message,
    engine_selector,
    with_client,
    with_output,
    with_selector,
)
from penstock.agent.ctl.render import order_rows, say
from penstock.agent.ctl.render import text as words
from penstock.agent.ctl.render.output import show
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from penstock.agent.ctl.client import Client
    from penstock.agent.model import EngineKey

_ADD_TTL = timedelta(hours=1)
_LIFT_TTL = timedelta(minutes=1)


@click.group()
def quarantine() -> None:
    """See which peers are cut off, cut one off, or let one back in."""


@quarantine.command("list")
@with_engines
@with_selector
@with_output(wide=True)
@with_client
def list_quarantines(client: Client, engines: tuple[EngineKey, ...], selector: str, output: str) -> None:
    """List peers that are in quarantine, and those that 'lift' lets in, in each engine."""
    request = admin.ListQuarantinesRequest(selector=engine_selector(selector, engines))
    response = client.call("ListQuarantines", request)
    found = order_rows.quarantines(response.quarantines, time.time())
    where = f" in an engine that fits {selector!r}" if selector else ""
    show_table(response, found, output, f"no peer is in quarantine{where}")


@quarantine.command()
@click.argument("peer", type=PEER)
@with_order
@click.option("--ttl", type=DURATION, default=_ADD_TTL, help="Ends by itself, at most 24h.  [default: 1h]")
@with_client
def add(client: Client, **how: Any) -> None:
    """Cut PEER (host:port) off: no request loads from it until the time is up.

    Requests recompute or fail at once, as the policy says. With neither ENGINE nor selector: in all engines.
    """
    _set(client, adds=True, **how)


@quarantine.command()
@click.argument("peer", type=PEER)
@with_order
@click.option(
    "--ttl", type=DURATION, default=_LIFT_TTL, help="How long it stays let in, at most 24h.  [default: 1m]"
)
@with_client
def lift(client: Client, **how: Any) -> None:
    """End the quarantine of PEER, whoever began it, and let it in until the time is up.

    Its failures are not counted meanwhile. With neither ENGINE nor selector: in all engines.
    """
    _set(client, adds=False, **how)


def _set(
    client: Client,
    *,
    adds: bool,
    peer: str,
    engines: tuple[EngineKey, ...],
    selector: str,
    reason: str,
    ttl: timedelta,
    timeout: timedelta,
    output: str,
) -> None:
    chosen = engine_selector(selector, engines)
    request = admin.SetQuarantineRequest(
        selector=chosen,
        peer=peer,
        state=QUARANTINE_STATE_OPEN if adds else QUARANTINE_STATE_CLOSED,
        ttl=duration_message(ttl),
        author=author(),
        reason=reason,
    )
    client.call("SetQuarantine", request)
    _warn_of_a_stranger(client, peer)
    what, done = (
        (f"the quarantine of {peer}", f"cutting off {peer}")
        if adds
        else (f"the end of the quarantine of {peer}", f"letting in {peer}")
    )
    last = follow_order(client, chosen, timeout, what, done, quiet=output != "table")
    if output != "table":
        show(last, output)


def _warn_of_a_stranger(client: Client, peer: str) -> None:
    """Say so if no engine has met *peer*: a slip of the pen would otherwise look like success."""
    known = client.call("ListPeers", admin.ListPeersRequest(state="all")).peers
    if all(item.peer.address != peer for item in known):
        text = f"warning: no engine knows a peer {peer} yet; 'agentctl get peers' lists them"
        say(words.style(client.hinted(text), "yellow"), err=True)
