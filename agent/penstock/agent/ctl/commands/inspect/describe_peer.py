"""``agentctl describe peer``."""

from __future__ import annotations

from collections import defaultdict
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
from penstock.agent.views import engines as rows
from penstock.agent.views import peers as latency
from penstock.agent.views import text as words
from penstock.agent.views.events import logged_words
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.orders import until_words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    say(*description(found, quarantines, list(failures.events), current_time()))
    for text in unreadable_words(failures.unreadable_batches):
        say(text, err=True)


def description(
    found: list[admin.PeerSummary],
    quarantines: list[admin.Quarantine],
    failures: list[admin.LoggedEvent],
    now: float,
) -> Iterator[str]:
    """Yield the lines of a description; *found* is of one peer, and not empty."""
    yield f"Peer: {rows.peer_words(found[0])}"
    ordered = defaultdict(list)
    for order in quarantines:
        ordered[order.key.server, order.key.engine].append(order)
    for item in found:
        yield f"Engine {words.engine(item.key)}:"
        yield from (f"{_INDENT}{line}" for line in _as_seen(item, now))
        # Once for each engine, though an answer may name one twice.
        for order in ordered.pop((item.key.server, item.key.engine), ()):
            yield f"{_INDENT}{_quarantine(order, now)}"
    if failures:
        yield "Last failures:"
        for entry in failures:
            when = words.ago(entry.event.time_unix_nano, now)
            request = entry.event.request_id or words.NONE
            yield f"{_INDENT}{when}, engine {words.engine(entry.key)}, request {request}: {logged_words(entry)}"


def _as_seen(item: admin.PeerSummary, now: float) -> Iterator[str]:
    retired = " (retired)" if item.retired else ""
    yield f"Status: {rows.peer_status(item)}{retired}"
    why = f": {item.condition_reason}" if item.condition_reason else ""
    lasts = f" for {latency.since(item, now)}" if item.HasField("condition_since") else ""
    yield f"Now: {latency.styled_condition(item)}{lasts}{why}"
    if item.peer.engine_id:
        yield f"Engine id: {item.peer.engine_id}"
    mean = f", {words.span_of_time(item.mean_duration_seconds)} on average" if item.transfers_ok else ""
    yield f"Transfers: {item.transfers_ok} ok{mean}, {rows.failed_attempts(item)} failed"
    yield from _windows("Waits", item.waits)
    yield from _windows("Transfer times", item.transfers)
    if item.failures:
        last = f", last {words.ago_of(item.last_failure, now)}" if item.HasField("last_failure") else ""
        yield f"Failures: {rows.failure_words(item)}{last}"
    if item.in_flight:
        yield f"In flight: {item.in_flight}, oldest since {words.ago_of(item.oldest_in_flight, now)}"
    if item.deferred:
        yield f"Deferred: {item.deferred}, oldest since {words.ago_of(item.oldest_deferred, now)}"


def _windows(what: str, item: admin.PeerWindows) -> Iterator[str]:
    """Yield the quantiles of the windows, p50/p99; nothing if no window has any."""
    if any(each.count for each in (item.last_minute, item.last_15_minutes, item.hour_before)):
        yield (
            f"{what} (p50/p99): {latency.window(item.last_minute)} in the last minute, "
            f"{latency.window(item.last_15_minutes)} in the last 15, {latency.window(item.hour_before)} in the hour before"
        )


def _quarantine(order: admin.Quarantine, now: float) -> str:
    parts = [f"Quarantine: {words.quarantine_state(order.state)}", f"until: {until_words(order, now)}"]
    if order.reason:
        parts.append(words.one_line(order.reason))
    if order.author:
        parts.append(f"by {order.author}")
    return ", ".join(parts)
