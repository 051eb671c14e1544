"""``agentctl get engines|peers|events|audit``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.name_arguments import KIND, PEER, POLICY
from penstock.agent.ctl.options import DURATION, engine_selector, with_client, with_output, with_selector
from penstock.agent.ctl.render import rows, say
from penstock.agent.ctl.render.output import say_table, show, warn_unreadable
from penstock.proto.names import number, words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Channel, FailureMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from google.protobuf.message import Message
    from penstock.agent.ctl.client import Client


_NO_ENGINE = "no known engines: none has connected, or all were disconnected for longer than --retire-after"


def with_filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter events."""
    options = (
        with_selector,
        click.option(
            "--kind",
            "kinds",
            type=KIND,
            multiple=True,
            help="Only this kind, such as transfer_failure. May be repeated.",
        ),
        click.option("--channel", type=click.Choice(words(Channel)), help="Only this channel."),
        click.option("--mode", type=click.Choice(words(FailureMode)), help="Only this failure mode."),
        click.option("--peer", type=PEER, default="", help="Only this peer, as host:port."),
        click.option("--request", "request_id", default="", help="Only this request."),
        click.option("--since", type=DURATION, help="Only events of the last 10m, 2h, ..."),
        click.option(
            "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum rows."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def events_request(
    *,
    selector: str,
    kinds: tuple[str, ...],
    channel: str | None,
    mode: str | None,
    peer: str,
    request_id: str,
    since: timedelta | None,
    limit: int,
) -> admin.ListEventsRequest:
    """Return the request for the filters."""
    request = admin.ListEventsRequest(
        selector=engine_selector(selector), kinds=kinds, peer=peer, request_id=request_id, limit=limit
    )
    if channel is not None:
        request.channel = number(Channel, channel)  # type: ignore[assignment]
    if mode is not None:
        request.mode = number(FailureMode, mode)  # type: ignore[assignment]
    if since is not None:
        request.since.FromTimedelta(since)
    return request


def show_table(message: Message, found: rows.Table, output: str, nothing: str) -> None:
    """Print a listing in any format; an empty one prints *nothing* on stderr."""
    if output in {"json", "yaml"}:
        show(message, output)
    elif not found.rows:
        say(nothing, err=True)
    else:
        shown = found if output == "wide" else found.narrow()
        say_table(shown.headers, shown.rows)


def nothing_fits(selector: str, text: str) -> str:
    """Return *text*, or a sentence about the selector if there is one."""
    return f"no engine matches {selector!r}; omit --selector to list all" if selector else text


@click.command()
@with_selector
@click.option(
    "--state",
    type=click.Choice(["connected", "disconnected", "all"]),
    default="all",
    show_default=True,
    help="Only engines in this state.",
)
@with_output(wide=True)
@with_client
def engines(client: Client, selector: str, state: str, output: str) -> None:
    """List engines: connected, policy in force, deferred requests."""
    request = admin.ListEnginesRequest(
        selector=engine_selector(selector), state="" if state == "all" else state
    )
    response = client.call("ListEngines", request)
    show_table(
        response,
        rows.engines(response.engines, time.time()),
        output,
        nothing_fits(selector, _NO_ENGINE if state == "all" else f"no engine is {state}"),
    )


@click.command()
@with_selector
@click.option(
    "--state",
    type=click.Choice(["active", "retired", "all"]),
    default="active",
    show_default=True,
    help="Only peers in this state; retired: neither used nor reported for --retire-after.",
)
@with_output(wide=True)
@with_client
def peers(client: Client, selector: str, state: str, output: str) -> None:
    """List peers: transfers, failures, in flight. Counted since the state directory was created."""
    request = admin.ListPeersRequest(selector=engine_selector(selector), state=state)
    response = client.call("ListPeers", request)
    show_table(
        response,
        rows.peers(response.peers, time.time()),
        output,
        nothing_fits(selector, f"no peer is {state}" if response.left_out else "no known peers"),
    )
    if response.left_out and state == "active" and output in {"table", "wide"}:
        count = response.left_out
        say(
            f"{count} retired peer{'s are' if count > 1 else ' is'} not shown; --state all lists them",
            err=True,
        )


@click.command()
@with_filters
@with_output(wide=True)
@with_client
def events(client: Client, output: str, **filters: Any) -> None:
    """List events of the log, newest last."""
    response = client.call("ListEvents", events_request(**filters))
    found = rows.logged_events(response.events, time.time(), wide=output == "wide")
    where = "among the newest of the log" if response.truncated else "in the log"
    show_table(response, found, output, f"no matching event {where}")
    if response.truncated and output in {"table", "wide"}:
        say("older events are not shown; use --limit or --since", err=True)
    if output in {"table", "wide"}:
        warn_unreadable(response.unreadable_batches)


@click.command()
@click.argument("name", type=POLICY, default="")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum rows.")
@with_output(wide=True)
@with_client
def audit(client: Client, name: str, limit: int, output: str) -> None:
    """List the audit log, newest first: who changed what, when and why. With NAME: only its entries."""
    response = client.call("ListAudit", admin.ListAuditRequest(name=name, limit=limit))
    show_table(response, rows.audit(response.entries, time.time()), output, "no changes yet")
