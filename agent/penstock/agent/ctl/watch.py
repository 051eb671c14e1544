"""``agentctl watch``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.ctl import words
from penstock.agent.ctl.event_words import event_peer, event_words
from penstock.agent.ctl.get import events_request, with_filters
from penstock.agent.ctl.options import with_client, with_output
from penstock.agent.ctl.output import dump_yaml, plain

if TYPE_CHECKING:
    from penstock.agent.ctl.client import Client
    from penstock.proto.v1 import admin_pb2 as admin


@click.command()
@with_filters
@with_output()
@with_client
def watch(client: Client, output: str, **filters: Any) -> None:
    """Print events as they come, until interrupted; with --since, those of that time first.

    With -o json: one object a line.
    """
    for item in client.stream("WatchEvents", events_request(**filters)):
        click.echo(_text(item, output))


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
