"""``agentctl get requests``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.batch import CLEAN_UP
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.name_arguments import PEER
from penstock.agent.ctl.options import DURATION, engine_selector, with_client, with_selector
from penstock.agent.ctl.printing.output import unreadable_words
from penstock.agent.views import text as words
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import Table
from penstock.agent.views.text import duration
from penstock.proto import names
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client

_MOST = 10_000
_COLOURS = {
    common.OUTCOME_FAILED: "red",
    common.OUTCOME_ABORTED: "red",
    common.OUTCOME_RECOMPUTED: "yellow",
}


@click.command()
@click.argument("names_of_requests", nargs=-1, metavar="[REQUEST]...")
@click.option("--deferred", is_flag=True, help="Only deferred requests, longest wait first.")
@click.option("--slow", is_flag=True, help="The slowest of the newest requests, slowest first.")
@click.option("--outcome", type=click.Choice(names.words(common.Outcome)), help="Only this outcome.")
@click.option("--peer", type=PEER, default="", help="Only this peer, as host:port.")
@click.option("--since", type=DURATION, help="Only requests of the last 10m, 2h, ...")
@click.option(
    "--sort",
    type=click.Choice(["age", "time", "duration", "wait", "ttft"]),
    help="age: oldest first; time: newest first; duration, wait (deferred), ttft (time to first token):"
    " longest first.  [default: age with --deferred, ttft with --slow, else time]",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum rows.")
@with_selector
@with_listing
@with_client
def requests(
    client: Client,
    names_of_requests: tuple[str, ...],
    deferred: bool,
    slow: bool,
    outcome: str | None,
    peer: str,
    since: timedelta | None,
    sort: str | None,
    limit: int,
    selector: str,
    style: ListStyle,
) -> None:
    """List requests of the log, newest first, or only those named by an id or a prefix of it.

    'agentctl explain REQUEST' explains one.
    """
    if deferred and outcome:
        raise UsageError("a request that is deferred has no outcome yet; give --deferred or --outcome")
    if slow and (deferred or outcome):
        raise UsageError("--slow lists requests of any outcome; give --slow, --deferred or --outcome")
    request = admin.ListRequestsRequest(
        selector=engine_selector(selector),
        deferred=deferred,
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
            deferred=deferred,
            ranked=deferred or slow,
        )

    show_listing(fetch, style)


def _listing(
    response: admin.ListRequestsResponse,
    wanted: tuple[str, ...],
    selector: str,
    *,
    deferred: bool,
    ranked: bool,
) -> Listing:
    notes = []
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
        which = "more" if ranked else "older"
        notes.append(f"{which} requests are not shown; use --limit, --since or --peer")
    notes += unreadable_words(response.unreadable_batches)
    if response.unnamed_deferred:
        notes.append(
            f"{response.unnamed_deferred} more are deferred whose ids are not in the log (new, or lost)"
        )
    where = "among the newest events of the log" if response.truncated else "in the log"
    queues = "those in the engines' own queues are not listed"
    nothing = f"no request waits for a transfer; {queues}" if deferred else f"no matching request {where}"
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


def rows(items: Iterable[admin.RequestSummary], now: float) -> Table:
    """List requests."""
    return Table(
        ("AGE", "ENGINE", "REQUEST", "STATE", "DURATION", "WAIT", "TTFT", "MODE", "PEER", "RECOMPUTED", "FINISH",
         "TRACE", "CLOSED", "GATE"),
        [
            (
                words.ago_of(item.since, now).removesuffix(" ago"),
                words.engine(item.key),
                item.request_id,
                _state(item),
                duration(item.duration),
                duration(item.wait),
                duration(item.time_to_first_token),
                words.word(common.FailureMode, item.mode) if item.mode else words.NONE,
                item.peer.address or words.NONE,
                str(item.tokens_recomputed) if item.tokens_recomputed else words.NONE,
                item.finish_reason or words.NONE,
                item.trace_id or words.NONE,
                words.ago_of(item.closed, now),
                _gate(item),
            )
            for item in items
        ],
        wide=3,
    )  # fmt: skip


def _gate(item: admin.RequestSummary) -> str:
    """Return where it was longest before its first token."""
    return item.gates[0].gate.replace("_", " ") if item.gates else words.NONE


def _state(item: admin.RequestSummary) -> str:
    """Return its outcome, or what it waits for."""
    if item.outcome:
        text = words.word(common.Outcome, item.outcome)
        return words.style(text, _COLOURS[item.outcome]) if item.outcome in _COLOURS else text
    if item.deferred:
        return words.style(f"waits for {words.word(common.DeferralReason, item.deferred)}", "yellow")
    if item.HasField("closed"):
        return CLEAN_UP if item.finish_reason == CLEAN_UP else "ok"
    # A request lost with its engine has a finish reason and no end time.
    return words.style("lost", "red") if item.finish_reason else "open"
