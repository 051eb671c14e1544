"""``agentctl describe peer``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.name_arguments import PEER
from penstock.agent.ctl.options import with_client
from penstock.agent.ctl.peer_names import is_named, peers_request
from penstock.agent.ctl.printing.console import say
from penstock.agent.ctl.printing.formats import with_output
from penstock.agent.ctl.printing.output import say_document, unreadable_words
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.peers import peer_description
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client

_EVENTS = 5
_INDENT = "  "


@click.command()
@click.argument("name", type=PEER, metavar="PEER")
@with_output()
@with_client
def peer(client: Client, name: str, output: str) -> None:
    """Show PEER (host:port, or the engine there) as each engine sees it: transfers, failures, quarantine."""
    found = [
        item
        for item in client.call("ListPeers", peers_request([name], state="all")).peers
        if is_named(item, [name])
    ]
    if not found:
        raise FailedError(f"peer {name!r} not found; 'agentctl get peers --state all' lists them")
    address = found[0].peer.address
    quarantines = [
        item
        for item in client.call("ListQuarantines", admin.ListQuarantinesRequest()).quarantines
        if item.peer.address == address
    ]
    request = admin.ListEventsRequest(peer=address, kinds=["transfer_failure"], limit=_EVENTS)
    failures = client.call("ListEvents", request)
    failures.events.sort(key=lambda item: item.event.time_unix_nano)
    if output != "table":
        document = {
            "peer": address,
            "engines": [as_json_values(item) for item in found],
            "quarantines": [as_json_values(item) for item in quarantines],
            "failures": [as_json_values(item) for item in failures.events],
        }
        say_document(document, output)
        return
    say(*peer_description(found, quarantines, list(failures.events), current_time()))
    for text in unreadable_words(failures.unreadable_batches):
        say(text, err=True)
