"""``agentctl get suspects``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from penstock.agent.ctl.clock import current_time
from penstock.agent.ctl.listing import Listing, ListStyle, nothing_fits, show_listing, with_listing
from penstock.agent.ctl.options import DURATION, engine_selector, with_client, with_selector
from penstock.agent.ctl.printing.output import unreadable_words
from penstock.agent.views import text as words
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import SuspectReason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from penstock.agent.ctl.connection.client import Client


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
            rows(response.suspects, current_time()),
            [item.request_id or item.peer_request_id for item in response.suspects],
            lambda: as_json_values(response),
            "suspects",
            nothing_fits(selector, "no suspect answers in this part of the log"),
            notes,
            limited=True,
        )

    show_listing(fetch, style)


def rows(items: Iterable[admin.Suspect], now: float) -> Table:
    """List suspects."""
    return Table(
        ("AGE", "ENGINE", "REQUEST", "REASON", "READ-FROM", "FINISH", "WHY", "PEER-REQUEST", "TRACE"),
        [
            (
                words.ago_of(item.seen, now).removesuffix(" ago"),
                words.engine(item.key) if item.HasField("key") else "unknown",
                item.request_id or "unknown",
                _reasons(item),
                words.engine(item.peer_key) if item.HasField("peer_key") else item.peer.address or words.NONE,
                item.finish_reason or ("running" if item.request_id else words.NONE),
                "; ".join(map(words.folded, item.evidence)),
                item.peer_request_id or words.NONE,
                item.trace_id or words.NONE,
            )
            for item in items
        ],
        wide=2,
    )


def _reasons(item: admin.Suspect) -> str:
    reasons = ",".join(words.word(SuspectReason, reason) for reason in item.reasons)
    return f"{reasons} (drill)" if item.rehearsal else reasons
