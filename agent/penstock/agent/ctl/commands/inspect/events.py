"""``agentctl get events``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.commands.inspect.event_filters import events_request, with_filters
from penstock.agent.ctl.commands.inspect.watch import follow
from penstock.agent.ctl.listing import Listing, ListStyle, RowPrinter, show_listing, with_listing
from penstock.agent.ctl.options import with_client
from penstock.agent.ctl.printing.output import unreadable_words
from penstock.agent.views.events import event_rows
from penstock.agent.views.json_values import as_json_values
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client

# Behind all events of a batch.
_NO_INDEX = 1 << 32


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
