"""Rows of requests, and of answers that may be wrong. Pure: messages and the current time in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.batch import CLEAN_UP
from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.agent.views.text import duration
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import SuspectReason

if TYPE_CHECKING:
    from collections.abc import Iterable

_COLOURS = {
    common.OUTCOME_FAILED: "red",
    common.OUTCOME_ABORTED: "red",
    common.OUTCOME_RECOMPUTED: "yellow",
}


def request_rows(items: Iterable[admin.RequestSummary], now: float) -> Table:
    """Return the table of requests."""
    return Table(
        ("AGE", "ENGINE", "REQUEST", "STATE", "DURATION", "WAIT", "TTFT", "MODE", "PEER", "RECOMPUTED", "FINISH",
         "TRACE", "CLOSED", "GATE"),
        [
            (
                text.ago_of(item.since, now).removesuffix(" ago"),
                text.engine(item.key),
                item.request_id,
                _state(item),
                duration(item.duration),
                duration(item.wait),
                duration(item.time_to_first_token),
                text.word(common.FailureMode, item.mode) if item.mode else text.NONE,
                item.peer.address or text.NONE,
                str(item.tokens_recomputed) if item.tokens_recomputed else text.NONE,
                item.finish_reason or text.NONE,
                item.trace_id or text.NONE,
                text.ago_of(item.closed, now),
                _gate(item),
            )
            for item in items
        ],
        wide=3,
    )  # fmt: skip


def _gate(item: admin.RequestSummary) -> str:
    """Return where it was longest before its first token."""
    return item.gates[0].gate.replace("_", " ") if item.gates else text.NONE


def _state(item: admin.RequestSummary) -> str:
    """Return its outcome, or what it waits for."""
    if item.outcome:
        said = text.word(common.Outcome, item.outcome)
        return text.style(said, _COLOURS[item.outcome]) if item.outcome in _COLOURS else said
    if item.deferred:
        return text.style(f"waits for {text.word(common.DeferralReason, item.deferred)}", "yellow")
    if item.HasField("closed"):
        return CLEAN_UP if item.finish_reason == CLEAN_UP else "ok"
    # A request lost with its engine has a finish reason and no end time.
    return text.style("lost", "red") if item.finish_reason else "open"


def suspect_rows(items: Iterable[admin.Suspect], now: float) -> Table:
    """Return the table of suspect answers."""
    return Table(
        ("AGE", "ENGINE", "REQUEST", "REASON", "READ-FROM", "FINISH", "WHY", "PEER-REQUEST", "TRACE"),
        [
            (
                text.ago_of(item.seen, now).removesuffix(" ago"),
                text.engine(item.key) if item.HasField("key") else "unknown",
                item.request_id or "unknown",
                _reasons(item),
                text.engine(item.peer_key) if item.HasField("peer_key") else item.peer.address or text.NONE,
                item.finish_reason or ("running" if item.request_id else text.NONE),
                "; ".join(map(text.folded, item.evidence)),
                item.peer_request_id or text.NONE,
                item.trace_id or text.NONE,
            )
            for item in items
        ],
        wide=2,
    )


def _reasons(item: admin.Suspect) -> str:
    reasons = ",".join(text.word(SuspectReason, reason) for reason in item.reasons)
    return f"{reasons} (drill)" if item.rehearsal else reasons
