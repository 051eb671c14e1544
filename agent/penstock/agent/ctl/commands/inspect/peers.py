"""``agentctl get peers``, ``describe peer`` and ``get pairs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import (
    PAIR_SIDE,
    PEER,
    engine_selector,
    is_named,
    peers_request,
    with_client,
    with_selector,
)
from penstock.agent.ctl.output import say_document, unreadable_words
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.peers import other_side, pair_rows, peer_description, peer_rows
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


_EVENTS = 5

_INDENT = "  "


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


@click.command()
@click.argument("name", type=PEER, metavar="PEER")
@with_output()
@with_client
def peer(client: Client, name: str, output: str) -> None:
    """Show PEER (host:port, or the engine there) as each engine sees it: transfers, failures, quarantine."""
    found = [
        item
        for item in client.call("ListPeers", peers_request([name], state="all")).peers
        if is_named(item, [name])
    ]
    if not found:
        raise FailedError(f"peer {name!r} not found; 'agentctl get peers --state all' lists them")
    address = found[0].peer.address
    quarantines = [
        item
        for item in client.call("ListQuarantines", admin.ListQuarantinesRequest()).quarantines
        if item.peer.address == address
    ]
    request = admin.ListEventsRequest(peer=address, kinds=["transfer_failure"], limit=_EVENTS)
    failures = client.call("ListEvents", request)
    failures.events.sort(key=lambda item: item.event.time_unix_nano)
    if output != "table":
        document = {
            "peer": address,
            "engines": [as_json_values(item) for item in found],
            "quarantines": [as_json_values(item) for item in quarantines],
            "failures": [as_json_values(item) for item in failures.events],
        }
        say_document(document, output)
        return
    say(*peer_description(found, quarantines, list(failures.events), current_time()))
    for sentence in unreadable_words(failures.unreadable_batches):
        say(sentence, err=True)


@click.command()
@click.argument("names", nargs=-1, type=PAIR_SIDE, metavar="[ENGINE|PEER]...")
@with_listing
@with_client
def pairs(client: Client, names: tuple[str, ...], style: ListStyle) -> None:
    """List pairs of engines, or those of the engines and peers that are named; the worst first.

    A pair is two engines that exchange KV blocks, or that could: their role, model and connector match. A relay
    compares all engines of the fleet, even before traffic; one agent knows engines of other pods only from handshakes.
    """

    def fetch() -> Listing:
        response = client.call("ListPairs", admin.ListPairsRequest())
        if names:
            found = [item for item in response.pairs if _sides(item) & {*names}]
            del response.pairs[:]
            response.pairs.extend(found)
        there = {side for item in response.pairs for side in _sides(item)}
        left_out = text.count(response.left_out, "pair")
        return Listing(
            "pair",
            pair_rows(response.pairs),
            [f"{text.engine(item.key)}={other_side(item)}" for item in response.pairs],
            lambda: as_json_values(response),
            "pairs",
            "no pairs: no two engines here move KV blocks between them, and none has a peer",
            [f"{left_out} not shown, none worse than these"] if response.left_out else [],
            [f"no pair of {name!r}; 'agentctl get pairs' lists all" for name in names if name not in there],
        )

    show_listing(fetch, style)


def _sides(item: admin.Pair) -> set[str]:
    return {text.engine(item.key), other_side(item), item.peer.address} - {"", text.NONE}
