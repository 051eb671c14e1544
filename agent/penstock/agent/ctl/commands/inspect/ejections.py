"""``agentctl get ejections``: which servers are out of rotation, and what policies make of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import ENGINE, engine_selector, with_client, with_selector
from penstock.agent.views import orders as order_rows
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey


@click.command()
@click.argument("engines", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@with_listing
@with_client
def ejections(client: Client, engines: tuple[EngineKey, ...], selector: str, style: ListStyle) -> None:
    """List servers that are out of rotation and, of a relay that leads, those that policies take or would take out.

    'watched' has too little evidence yet, 'held back' is kept by a rail, 'would eject' is by a policy that observes.
    """
    request = admin.ListEjectionsRequest(selector=engine_selector(selector, engines))

    def fetch() -> Listing:
        response = client.call("ListEjections", request)
        return Listing(
            "ejection",
            order_rows.ejections(response.ejections, current_time()),
            [text.engine(item.key) for item in response.ejections],
            lambda: as_json_values(response),
            "ejections",
            nothing_fits(selector, "every server is in rotation"),
            notes=[response.undecided] if response.undecided else [],
        )

    show_listing(fetch, style)
