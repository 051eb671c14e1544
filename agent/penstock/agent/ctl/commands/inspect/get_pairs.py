"""``agentctl get pairs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.name_arguments import PAIR_SIDE
from penstock.agent.ctl.options import with_client
from penstock.agent.views import pairs as pair_rows
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


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
            pair_rows.pairs(response.pairs),
            [f"{text.engine(item.key)}={pair_rows.peer_name(item)}" for item in response.pairs],
            lambda: as_json_values(response),
            "pairs",
            "no pairs: no two engines here move KV blocks between them, and none has a peer",
            [f"{left_out} not shown, none worse than these"] if response.left_out else [],
            [f"no pair of {name!r}; 'agentctl get pairs' lists all" for name in names if name not in there],
        )

    show_listing(fetch, style)


def _sides(item: admin.Pair) -> set[str]:
    return {text.engine(item.key), pair_rows.peer_name(item), item.peer.address} - {"", text.NONE}
