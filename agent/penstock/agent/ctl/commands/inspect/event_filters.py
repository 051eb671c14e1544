"""The options that filter events, and the request for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.name_arguments import KIND, PEER
from penstock.agent.ctl.options import DURATION, engine_selector, with_selector
from penstock.proto.names import number, words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Channel, FailureMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


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
