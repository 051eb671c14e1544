"""``agentctl get engines``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.name_arguments import ENGINE
from penstock.agent.ctl.options import engine_selector, with_client, with_selector
from penstock.agent.model import EngineKey
from penstock.agent.parsing import no_engine
from penstock.agent.views import text as words
from penstock.agent.views.engines import engine_rows
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


_NO_ENGINE = "no known engines: none has connected, or all were disconnected for longer than --retire-after"


@click.command()
@click.argument("keys", nargs=-1, type=ENGINE, metavar="[ENGINE]...")
@with_selector
@click.option(
    "--state",
    type=click.Choice(["connected", "disconnected", "all"]),
    default="all",
    show_default=True,
    help="Only engines in this state.",
)
@with_listing
@with_client
def engines(client: Client, keys: tuple[EngineKey, ...], selector: str, state: str, style: ListStyle) -> None:
    """List engines, or those that are named: connected, policy in force, deferred requests."""
    if keys and selector:
        raise UsageError("names and --selector exclude each other; give one of them")
    request = admin.ListEnginesRequest(
        selector=engine_selector(selector, keys), state="" if state == "all" else state
    )

    def fetch() -> Listing:
        response = client.call("ListEngines", request)
        return Listing(
            "engine",
            engine_rows(response.engines, current_time()),
            [words.engine(item.key) for item in response.engines],
            lambda: as_json_values(response),
            "engines",
            nothing_fits(selector, _NO_ENGINE if state == "all" else f"no engine is {state}"),
            missing=_missing_engines(client, keys, response.engines),
            single=len(keys) == 1,
        )

    show_listing(fetch, style)


def _missing_engines(client: Client, keys: tuple[EngineKey, ...], found: list[admin.Engine]) -> list[str]:
    there = {EngineKey(item.key.server, item.key.engine) for item in found}
    missing = [key for key in keys if key not in there]
    if not missing:
        return []
    everything = client.call("ListEngines", admin.ListEnginesRequest()).engines
    known = [EngineKey(item.key.server, item.key.engine) for item in everything]
    prefix = "there is no engine {!r}; "
    return [
        f"engine {str(key)!r} not found; {no_engine(key, known).removeprefix(prefix.format(str(key)))}"
        for key in missing
    ]
