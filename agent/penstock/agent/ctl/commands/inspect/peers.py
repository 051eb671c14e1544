"""``agentctl get peers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.name_arguments import PEER
from penstock.agent.ctl.options import engine_selector, with_client, with_selector
from penstock.agent.ctl.peer_names import is_named, peers_request
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.peers import peer_rows

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


@click.command()
@click.argument("names", nargs=-1, type=PEER, metavar="[PEER]...")
@with_selector
@click.option(
    "--state",
    type=click.Choice(["active", "retired", "all"]),
    help="Only peers in this state; retired: neither used nor reported for --retire-after.  "
    "[default: active; all for peers that are named]",
)
@click.option(
    "--worst",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Only the N peers in the worst condition.",
)
@with_listing
@with_client
def peers(
    client: Client,
    names: tuple[str, ...],
    selector: str,
    state: str | None,
    worst: int | None,
    style: ListStyle,
) -> None:
    """List peers, or those that are named by address or engine: what is wrong now, and since when.

    With -o wide also transfers, failures and what is in flight, counted since the state directory was created.
    """
    state = state or ("all" if names else "active")
    request = peers_request(names, selector=engine_selector(selector), state=state)
    if worst and not names:
        request.limit = worst

    def fetch() -> Listing:
        response = client.call("ListPeers", request)
        if names:
            found = [item for item in response.peers if is_named(item, names)]
            del response.peers[:]
            response.peers.extend(found)
        there = {name for name in names if any(is_named(item, (name,)) for item in response.peers)}
        total = len(response.peers) if names else max(response.total, len(response.peers))
        # Of named ones all are there, and an agent of an older version does not know limits.
        del response.peers[worst or total :]
        notes = []
        if len(response.peers) < total:
            notes.append(f"the worst {len(response.peers)} of {total} are shown; omit --worst for all")
        if (count := response.left_out) and state == "active":
            notes.append(
                f"{count} retired peer{'s are' if count > 1 else ' is'} not shown; --state all lists them"
            )
        return Listing(
            "peer",
            peer_rows(response.peers, current_time()),
            [item.peer.address for item in response.peers],
            lambda: as_json_values(response),
            "peers",
            nothing_fits(selector, f"no peer is {state}" if response.left_out else "no known peers"),
            notes,
            [
                f"peer {name!r} not found; 'agentctl get peers --state all' lists them"
                for name in names
                if name not in there
            ],
        )

    show_listing(fetch, style)
