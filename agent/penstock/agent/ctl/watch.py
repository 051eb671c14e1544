"""``agentctl watch``: events as they come, over restarts of the agent."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl import words
from penstock.agent.ctl.event_words import event_peer, event_words
from penstock.agent.ctl.failure import AwayError
from penstock.agent.ctl.get import events_request, with_filters
from penstock.agent.ctl.options import with_client, with_output
from penstock.agent.ctl.output import dump_yaml, plain
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.ctl.client import Client

# Seconds between two looks for an agent that is away.
_AGAIN = 1.0
# What happened meanwhile is asked for from this much earlier: the clocks of engines and agent differ.
_OVERLAP = 60.0
_MOST = 10_000


@click.command()
@with_filters
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many events.")
@with_output()
@with_client
def watch(client: Client, count: int | None, output: str, **filters: Any) -> None:
    """Print events as they come, until interrupted; with --since, those of that time first.

    Goes on when the agent comes back, with what it has missed. With -o json: one object a line.
    """
    for item in islice(follow(client, events_request(**filters)), count):
        click.echo(_text(item, output))


def follow(
    client: Client, request: admin.ListEventsRequest, sleep: Callable[[float], None] = time.sleep
) -> Iterator[admin.LoggedEvent]:
    """Yield events for ever, each once; says on the error stream when the agent goes and comes.

    Raises:
        FailedError: there is no agent to begin with, or it cannot answer this.

    """
    # So that what comes while the agent is away is asked for, even if nothing came before.
    last = _position(client)
    began = time.monotonic()
    yielded = False
    asked = request
    while True:
        try:
            for item in client.stream("WatchEvents", asked):
                if asked is request or (item.batch, item.index) > last:
                    last = max(last, (item.batch, item.index))
                    began, yielded = time.monotonic(), True
                    yield item
        except AwayError:
            pass
        click.echo(click.style("the agent is away; waiting for it", fg="yellow"), err=True)
        last = _await(client, last, sleep)
        click.echo(click.style("the agent is back", fg="green"), err=True)
        asked = admin.ListEventsRequest()
        asked.CopyFrom(request)
        asked.limit = _MOST
        if yielded or not request.HasField("since"):
            asked.since.FromMilliseconds(int((time.monotonic() - began + _OVERLAP) * 1000))


def _position(client: Client) -> tuple[int, int]:
    """Return where the log ends now."""
    status = client.call("GetStatus", admin.GetStatusRequest())
    return status.log_last, 1 << 32


def _await(client: Client, last: tuple[int, int], sleep: Callable[[float], None]) -> tuple[int, int]:
    """Wait until the agent answers; returns *last*, or the beginning if its log is a new one."""
    while True:
        sleep(_AGAIN)
        try:
            status = client.call("GetStatus", admin.GetStatusRequest())
        except AwayError:
            continue
        return last if status.log_last >= last[0] else (0, 0)


def _text(item: admin.LoggedEvent, output: str) -> str:
    if output == "json":
        return json.dumps(plain(item), ensure_ascii=False)
    if output == "yaml":
        return f"---\n{dump_yaml(plain(item))}"
    event = item.event
    moment = datetime.fromtimestamp(event.time_unix_nano / 1e9, UTC).astimezone()
    parts = [
        moment.strftime("%H:%M:%S.%f")[:-3],
        words.engine(item.key),
        click.style(event.WhichOneof("body") or "unknown", bold=True),
        *(part for part in (event.request_id, event_peer(event)) if part and part != words.NONE),
    ]
    return words.printable(f"{'  '.join(parts)}  {event_words(event)}")
