"""``agentctl get engines|peers|audit``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, show_listing, with_listing
from penstock.agent.ctl.name_arguments import ENGINE, PEER, POLICY
from penstock.agent.ctl.options import engine_selector, with_client, with_selector
from penstock.agent.ctl.render import rows
from penstock.agent.ctl.render import text as words
from penstock.agent.ctl.render.json_values import as_json_values
from penstock.agent.model import EngineKey
from penstock.agent.parsing import no_engine
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.client import Client


_NO_ENGINE = "no known engines: none has connected, or all were disconnected for longer than --retire-after"


def nothing_fits(selector: str, text: str) -> str:
    """Return *text*, or a sentence about the selector if there is one."""
    return f"no engine matches {selector!r}; omit --selector to list all" if selector else text


def names_alone(names: tuple[object, ...], selector: str) -> None:
    """Refuse names beside a selector.

    Raises:
        UsageError: both are given.

    """
    if names and selector:
        raise UsageError("names and --selector exclude each other; give one of them")


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
    names_alone(keys, selector)
    request = admin.ListEnginesRequest(
        selector=engine_selector(selector, keys), state="" if state == "all" else state
    )

    def fetch() -> Listing:
        response = client.call("ListEngines", request)
        return Listing(
            "engine",
            rows.engines(response.engines, time.time()),
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


@click.command()
@click.argument("names", nargs=-1, type=PEER, metavar="[PEER]...")
@with_selector
@click.option(
    "--state",
    type=click.Choice(["active", "retired", "all"]),
    help="Only peers in this state; retired: neither used nor reported for --retire-after.  "
    "[default: active; all for peers that are named]",
)
@with_listing
@with_client
def peers(client: Client, names: tuple[str, ...], selector: str, state: str | None, style: ListStyle) -> None:
    """List peers, or those that are named: transfers, failures, in flight.

    Counted since the state directory was created.
    """
    state = state or ("all" if names else "active")
    request = admin.ListPeersRequest(selector=engine_selector(selector), state=state)

    def fetch() -> Listing:
        response = client.call("ListPeers", request)
        if names:
            found = [item for item in response.peers if item.peer.address in names]
            del response.peers[:]
            response.peers.extend(found)
        there = {item.peer.address for item in response.peers}
        notes = []
        if (count := response.left_out) and state == "active":
            notes.append(
                f"{count} retired peer{'s are' if count > 1 else ' is'} not shown; --state all lists them"
            )
        return Listing(
            "peer",
            rows.peers(response.peers, time.time()),
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
@click.argument("name", type=POLICY, default="")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum rows.")
@with_listing
@with_client
def audit(client: Client, name: str, limit: int, style: ListStyle) -> None:
    """List the audit log, newest first: who changed what, when and why. With NAME: only its entries."""

    def fetch() -> Listing:
        response = client.call("ListAudit", admin.ListAuditRequest(name=name, limit=limit))
        return Listing(
            "audit",
            rows.audit(response.entries, time.time()),
            [str(item.id) for item in response.entries],
            lambda: as_json_values(response),
            "entries",
            "no changes yet",
            limited=True,
        )

    show_listing(fetch, style)
