"""``agentctl get holders``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import engine_selector, with_client, with_selector
from penstock.agent.views import text as words
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import BlockHolder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.model import EngineKey


@click.command()
@click.argument("keys", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@with_listing
@with_client
def holders(client: Client, keys: tuple[EngineKey, ...], selector: str, style: ListStyle) -> None:
    """List who holds KV blocks that no request computes with, by engine, holder and peer.

    Holders are leases, loads under way, aborted loads, pinned blocks and saves.
    """
    if keys and selector:
        raise UsageError("names and --selector exclude each other; give one of them")
    request = admin.ListHoldersRequest(selector=engine_selector(selector, keys))

    def fetch() -> Listing:
        response = client.call("ListHolders", request)
        unknown = ", ".join(words.engine(key) for key in response.unknown)
        return Listing(
            "holder",
            rows(response.holders, current_time()),
            [_name(item) for item in response.holders],
            lambda: as_json_values(response),
            "holders",
            nothing_fits(selector, "no blocks are held"),
            [f"no report from {unknown} now: what is held there is not known"] if unknown else [],
        )

    show_listing(fetch, style)


def rows(items: Iterable[admin.HolderSummary], now: float) -> Table:
    """List holders."""
    return Table(
        ("ENGINE", "HOLDER", "PEER", "REQUESTS", "BLOCKS", "SHARE", "OLDEST", "PEER-ENGINE-ID"),
        [
            (
                words.engine(item.key),
                words.word(BlockHolder, item.holder),
                item.peer.address or "unknown",
                str(item.requests) if item.requests else words.NONE,
                str(item.blocks),
                f"{item.share:.1%}" if item.HasField("share") else words.NONE,
                words.ago_of(item.oldest, now),
                item.peer.engine_id or words.NONE,
            )
            for item in items
        ],
        wide=1,
    )


def _name(item: admin.HolderSummary) -> str:
    return f"{words.engine(item.key)}/{words.word(BlockHolder, item.holder)}/{item.peer.address or 'unknown'}"
