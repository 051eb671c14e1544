"""``agentctl quarantine``: lists, adds and lifts quarantines of peers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.commands.orders.options import follow_order, with_engines, with_order
from penstock.agent.ctl.lazy_group import LazyGroup
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import (
    DURATION,
    PEER,
    author,
    duration_message,
    engine_selector,
    with_client,
    with_selector,
)
from penstock.agent.ctl.output import show
from penstock.agent.ctl.printing import say
from penstock.agent.views import orders as order_rows
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey

_ADD_TTL = timedelta(hours=1)
_LIFT_TTL = timedelta(minutes=1)


@click.group(cls=LazyGroup)
def quarantine() -> None:
    """List quarantined peers, add one, or lift a quarantine."""


@quarantine.command("list")
@with_engines
@with_selector
@with_listing
@with_client
def list_quarantines(client: Client, engines: tuple[EngineKey, ...], selector: str, style: ListStyle) -> None:
    """List quarantined peers, and peers exempt by 'lift', in each engine."""
    request = admin.ListQuarantinesRequest(selector=engine_selector(selector, engines))
    where = f" in an engine that matches {selector!r}" if selector else ""

    def fetch() -> Listing:
        response = client.call("ListQuarantines", request)
        return Listing(
            "quarantine",
            order_rows.quarantines(response.quarantines, current_time()),
            [item.peer.address for item in response.quarantines],
            lambda: as_json_values(response),
            "quarantines",
            f"no peer is in quarantine{where}",
        )

    show_listing(fetch, style)


@quarantine.command()
@click.argument("peer", type=PEER)
@with_order
@click.option("--ttl", type=DURATION, default=_ADD_TTL, help="Time to live, at most 24h.  [default: 1h]")
@with_client
def add(client: Client, **how: Any) -> None:
    """Quarantine PEER (host:port): no request loads from it until --ttl ends.

    Requests recompute or fail at once, by policy. Without ENGINE or selector: in all engines.
    """
    _set(client, adds=True, **how)


@quarantine.command()
@click.argument("peer", type=PEER)
@with_order
@click.option(
    "--ttl", type=DURATION, default=_LIFT_TTL, help="How long the peer is exempt, at most 24h.  [default: 1m]"
)
@with_client
def lift(client: Client, **how: Any) -> None:
    """End the quarantine of PEER, automatic or ordered, and exempt it until --ttl ends.

    Its failures are not counted meanwhile. Without ENGINE or selector: in all engines.
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
        (f"the quarantine of {peer}", f"quarantining {peer}")
        if adds
        else (f"the end of the quarantine of {peer}", f"exempting {peer}")
    )
    last = follow_order(client, chosen, timeout, what, done, quiet=output != "table")
    if output != "table":
        show(last, output)


def _warn_of_a_stranger(client: Client, peer: str) -> None:
    """Warn if no engine knows *peer*: a typing error would otherwise look like success."""
    known = client.call("ListPeers", admin.ListPeersRequest(state="all", peers=[peer])).peers
    if all(item.peer.address != peer for item in known):
        said = f"warning: no engine knows peer {peer}; 'agentctl get peers' lists them"
        say(text.style(client.hinted(said), "yellow"), err=True)
