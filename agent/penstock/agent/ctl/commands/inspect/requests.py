"""``agentctl get requests``, ``get suspects``, ``trace`` and ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import DURATION, PEER, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import show, unreadable_words, warn_unreadable
from penstock.agent.ctl.printing import say, with_output
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.queues import nothing_deferred, queued_rows, unknown_queues_words, waiting_words
from penstock.agent.views.requests import request_rows, suspect_rows, tree_lines
from penstock.proto import names
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

_MOST = 10_000


@click.command()
@click.argument("names_of_requests", nargs=-1, metavar="[REQUEST]...")
@click.option("--deferred", is_flag=True, help="Only deferred requests, longest wait first.")
@click.option(
    "--queued", is_flag=True, help="Only requests that wait or run in a scheduler now, oldest first."
)
@click.option("--slow", is_flag=True, help="The slowest of the newest requests, slowest first.")
@click.option("--outcome", type=click.Choice(names.words(common.Outcome)), help="Only this outcome.")
@click.option("--peer", type=PEER, default="", help="Only this peer, as host:port.")
@click.option("--since", type=DURATION, help="Only requests of the last 10m, 2h, ...")
@click.option(
    "--sort",
    type=click.Choice(["age", "time", "duration", "wait", "ttft"]),
    help="age: oldest first; time: newest first; duration, wait (deferred), ttft (time to first token):"
    " longest first.  [default: age with --deferred or --queued, ttft with --slow, else time]",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum rows.")
@with_selector
@with_listing
@with_client
def requests(
    client: Client,
    names_of_requests: tuple[str, ...],
    deferred: bool,
    queued: bool,
    slow: bool,
    outcome: str | None,
    peer: str,
    since: timedelta | None,
    sort: str | None,
    limit: int,
    selector: str,
    style: ListStyle,
) -> None:
    """List requests of the log and the schedulers, newest first, or only those named by an id or a prefix of it.

    'agentctl explain REQUEST' explains one.
    """
    if deferred and outcome:
        raise UsageError("a request that is deferred has no outcome yet; give --deferred or --outcome")
    if slow and (deferred or outcome):
        raise UsageError("--slow lists requests of any outcome; give --slow, --deferred or --outcome")
    if queued and (deferred or slow or outcome):
        raise UsageError(
            "--queued lists requests that have not ended; give --queued, --deferred, --slow or --outcome"
        )
    request = admin.ListRequestsRequest(
        selector=engine_selector(selector),
        deferred=deferred,
        queued=queued,
        slow=slow,
        peer=peer,
        sort=sort or "",
        limit=limit,
    )
    if outcome is not None:
        request.outcome = names.number(common.Outcome, outcome)  # type: ignore[assignment]
    if since is not None:
        request.since.FromTimedelta(since)
    if names_of_requests:
        # The log is asked for the newest; the names are looked for among these.
        request.limit = _MOST

    def fetch() -> Listing:
        return _listing(
            client.call("ListRequests", request),
            names_of_requests,
            selector,
            request,
        )

    show_listing(fetch, style)


def _listing(
    response: admin.ListRequestsResponse,
    wanted: tuple[str, ...],
    selector: str,
    asked: admin.ListRequestsRequest,
) -> Listing:
    notes = []
    if asked.queued:
        kept = [item for item in response.requests if item.HasField("queued")]
        if len(kept) < len(response.requests):
            notes.append("an agent is older than --queued, and its engines' queues are not known")
        del response.requests[:]
        response.requests.extend(kept)
    if wanted:
        ids = {item.request_id for item in response.requests}
        # An id in full is no prefix: req-1 is not req-10.
        whole, begun = ids.intersection(wanted), tuple(name for name in wanted if name not in ids)
        found = [
            item
            for item in response.requests
            if item.request_id in whole or (begun and item.request_id.startswith(begun))
        ]
        del response.requests[:]
        response.requests.extend(found)
    elif response.truncated:
        which = "more" if asked.deferred or asked.queued or asked.slow else "older"
        notes.append(f"{which} requests are not shown; use --limit, --since or --peer")
    notes += unreadable_words(response.unreadable_batches)
    if response.unnamed_deferred:
        notes.append(
            f"{response.unnamed_deferred} more are deferred whose ids are not in the log (new, or lost)"
        )
    notes += _queue_notes(response, asked)
    where = "among the newest events of the log" if response.truncated else "in the log"
    nothing = f"no matching request {where}"
    if asked.queued:
        nothing = "no request waits or runs in a scheduler"
    elif asked.deferred:
        nothing = nothing_deferred(response)
    rows = queued_rows if asked.queued else request_rows
    return Listing(
        "request",
        rows(response.requests, current_time()),
        [item.request_id for item in response.requests],
        lambda: as_json_values(response),
        "requests",
        nothing_fits(selector, nothing),
        notes,
        [
            f"request {name!r} not found {where}; 'agentctl explain {name}' looks in all of it"
            for name in wanted
            if not any(item.request_id.startswith(name) for item in response.requests)
        ],
        limited=True,
    )


def _queue_notes(response: admin.ListRequestsResponse, asked: admin.ListRequestsRequest) -> list[str]:
    """Return what a list of the schedulers' requests lacks."""
    if not asked.queued:
        return []
    notes = []
    if response.unnamed_queued:
        notes.append(
            f"{response.unnamed_queued} more wait or run that engines count and do not name: "
            f"{response.running} run, waiting: {waiting_words(response.waiting) or 'none'} in all"
        )
    if response.unknown_queues:
        notes.append(unknown_queues_words(response))
    return notes


@click.command()
@click.option(
    "--since", type=DURATION, default="1h", show_default=True, help="Only the last 10m, 2h, ... of the log."
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum rows.")
@with_selector
@with_listing
@with_client
def suspects(client: Client, since: timedelta, limit: int, selector: str, style: ListStyle) -> None:
    """List answers that may be wrong, newest first: they used a late or failed read, or had NaNs.

    'agentctl explain REQUEST' explains one.
    """
    request = admin.ListSuspectsRequest(selector=engine_selector(selector), limit=limit)
    request.since.FromTimedelta(since)

    def fetch() -> Listing:
        response = client.call("ListSuspects", request)
        notes = list(unreadable_words(response.unreadable_batches))
        if response.truncated:
            notes.append("more, or older events, are not shown; use --limit or --since")
        notes += sorted({item.missing for item in response.suspects} - {""})
        return Listing(
            "suspect",
            suspect_rows(response.suspects, current_time()),
            [item.request_id or item.peer_request_id for item in response.suspects],
            lambda: as_json_values(response),
            "suspects",
            nothing_fits(selector, "no suspect answers in this part of the log"),
            notes,
            limited=True,
        )

    show_listing(fetch, style)


@click.command()
@click.argument("request_id")
@with_output()
@with_client
def trace(client: Client, request_id: str, output: str) -> None:
    """Show the spans of one request as a tree.

    REQUEST_ID is vLLM's id, the client's, a unique prefix of either, or a trace id.
    """
    found = client.call("GetTrace", admin.GetTraceRequest(request_id=request_id))
    if output == "table":
        say(*tree_lines(found))
        warn_unreadable(found.unreadable_batches)
    else:
        show(found, output)


@click.command()
@click.argument("request_id")
@with_output()
@with_client
def explain(client: Client, request_id: str, output: str) -> None:
    """Explain in one sentence what happened to a request: peer, cause, action, cost.

    REQUEST_ID is vLLM's id, the client's, a unique prefix of either, or a trace id.
    """
    found = client.call("Explain", admin.GetTraceRequest(request_id=request_id))
    if output == "table":
        say(*found.sentences)
        warn_unreadable(found.unreadable_batches)
    else:
        show(found, output)
