"""``agentctl get events`` and ``watch``."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.errors import UnreachableError
from penstock.agent.ctl.listing import Listing, ListStyle, RowPrinter, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import DURATION, KIND, PEER, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import say_document, unreadable_words
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views import text
from penstock.agent.views.events import event_peer, event_rows, logged_words
from penstock.agent.views.json_values import as_json_values
from penstock.proto.names import number, words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Channel, FailureMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

# Behind all events of a batch.
_NO_INDEX = 1 << 32


# Seconds between attempts to reconnect.
_AGAIN = 1.0


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


@click.command()
@with_filters
@with_listing
@with_client
def events(client: Client, style: ListStyle, **filters: Any) -> None:
    """List events of the log by time, the newest last."""
    request = events_request(**filters)
    if style.watch:
        with suppress(KeyboardInterrupt):
            _watch(client, request, style)
    else:
        show_listing(lambda: _listing(client.call("ListEvents", request), style), style)


def _watch(client: Client, request: admin.ListEventsRequest, style: ListStyle) -> None:
    """Print the events there are, then those that come."""
    printer = RowPrinter(style)
    last = client.call("GetStatus", admin.GetStatusRequest()).log_last
    response = client.call("ListEvents", request)
    if printer.show(_listing(response, style), range(len(response.events))):
        return
    after = max([(last, _NO_INDEX), *((item.batch, item.index) for item in response.events)])
    for item in follow(client, request, after=after):
        if printer.show(_listing(admin.ListEventsResponse(events=[item]), style), [0]):
            return


def _listing(response: admin.ListEventsResponse, style: ListStyle) -> Listing:
    # The log has them as they came; engines may be behind each other.
    response.events.sort(key=lambda item: item.event.time_unix_nano)
    where = "among the newest of the log" if response.truncated else "in the log"
    notes = ["older events are not shown; use --limit or --since"] if response.truncated else []
    return Listing(
        "event",
        event_rows(response.events, current_time(), wide=style.output == "wide"),
        [f"{item.batch}-{item.index}" for item in response.events],
        lambda: as_json_values(response),
        "events",
        f"no matching event {where}",
        [*notes, *unreadable_words(response.unreadable_batches)],
        limited=True,
    )


@click.command()
@with_filters
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Exit after N events.")
@with_output()
@with_client
def watch(client: Client, count: int | None, output: str, **filters: Any) -> None:
    """Print events as they come, until interrupted; with --since, earlier events first.

    After a restart of the agent, resumes where it stopped. With -o json: one object a line.
    """
    for item in islice(follow(client, events_request(**filters)), count):
        _show(item, output)


def follow(
    client: Client,
    request: admin.ListEventsRequest,
    sleep: Callable[[float], None] = time.sleep,
    after: tuple[int, int] | None = None,
) -> Iterator[admin.LoggedEvent]:
    """Yield events for ever, each once; reports lost and restored connections on stderr.

    They begin behind the position *after* (batch, index); by default at the end of the log, or at ``since``.

    Raises:
        FailedError: no agent answers at the start, or the agent refuses the request.

    """
    asked = admin.ListEventsRequest()
    asked.CopyFrom(request)
    seen = {"": after} if after is not None else _ends(client.call("GetStatus", admin.GetStatusRequest()))
    if after is not None or not request.HasField("since"):
        _begin_after(asked, seen, 0 if after is None else 1)
    resumed = asked.HasField("after_batch") or bool(asked.after_agents)
    while True:
        try:
            for item in client.stream("WatchEvents", asked):
                position = (item.batch, item.index)
                if not resumed or position > seen.get(item.agent, (0, -1)):
                    seen[item.agent] = max(seen.get(item.agent, position), position)
                    yield item
        except UnreachableError:
            pass
        say(text.style("connection to the agent lost; reconnecting", "yellow"), err=True)
        for agent, (batch, _) in _await(client, sleep).items():
            if batch < seen.get(agent, (0, 0))[0]:
                # The log was replaced: all of it is new.
                seen[agent] = (0, 0)
        say(text.style("reconnected to the agent", "green"), err=True)
        # The last batch may not have been read to its end.
        _begin_after(asked, seen, 1)
        resumed = True


def _ends(status: admin.AgentStatus) -> dict[str, tuple[int, int]]:
    """Return the end of the agent's log, or of the log of each agent of a relay by name."""
    if not status.agents:
        return {"": (status.log_last, _NO_INDEX)}
    return {each.name: (each.status.log_last, _NO_INDEX) for each in status.agents if each.HasField("status")}


def _begin_after(asked: admin.ListEventsRequest, seen: dict[str, tuple[int, int]], back: int) -> None:
    """Ask for what comes *back* batches before the positions *seen*, and after."""
    del asked.after_agents[:]
    for agent, (batch, _) in seen.items():
        if agent:
            asked.after_agents.add(agent=agent, batch=max(batch - back, 0))
        else:
            asked.after_batch = max(batch - back, 0)


def _await(client: Client, sleep: Callable[[float], None]) -> dict[str, tuple[int, int]]:
    """Wait until the agent answers; return the end of its log, or of the log of each agent of a relay."""
    while True:
        sleep(_AGAIN)
        try:
            return _ends(client.call("GetStatus", admin.GetStatusRequest()))
        except UnreachableError:
            continue


def _show(item: admin.LoggedEvent, output: str) -> None:
    if output == "json":
        say_document(as_json_values(item), "line")
    elif output == "yaml":
        say("---")
        say_document(as_json_values(item), output)
    else:
        say(_text(item))


def _text(item: admin.LoggedEvent) -> str:
    event = item.event
    moment = datetime.fromtimestamp(event.time_unix_nano / 1e9, UTC).astimezone()
    parts = [
        moment.strftime("%H:%M:%S.%f")[:-3],
        text.engine(item.key),
        text.style(event.WhichOneof("body") or "unknown", "bold"),
        *(part for part in (event.request_id, event_peer(event)) if part and part != text.NONE),
    ]
    return f"{'  '.join(parts)}  {logged_words(item)}"
