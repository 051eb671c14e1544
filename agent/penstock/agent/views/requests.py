"""Table rows of requests and of suspect answers, and the spans of one request as a tree. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent.batch import CLEAN_UP
from penstock.agent.views import text
from penstock.agent.views.queues import queued_state
from penstock.agent.views.tables import Table
from penstock.agent.views.text import duration
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.events_pb2 import SuspectReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.proto.v1.admin_pb2 import Span, Trace

_COLOURS = {
    common.OUTCOME_FAILED: "red",
    common.OUTCOME_ABORTED: "red",
    common.OUTCOME_RECOMPUTED: "yellow",
}

# Attributes shown, in order.
MATTERS = (
    "penstock.outcome",
    "penstock.mode",
    "penstock.error_type",
    "penstock.peer",
    "penstock.decided_by",
    "penstock.tokens_kept",
    "penstock.tokens_recomputed",
    "penstock.items_recomputed",
    "penstock.tokens_lost",
    "penstock.items_lost",
    "penstock.reason",
    "penstock.observed_outcome",
    "penstock.observed_reason",
    "penstock.delay_seconds",
    "penstock.delayed_by_peer",
    "penstock.pinned_blocks",
    "penstock.deferral.reason",
    "penstock.ending",
    "penstock.probe_result",
    "penstock.bytes",
    "penstock.blocks",
    "penstock.waiters",
    "penstock.caused_by_request_id",
    "penstock.caused_by_peer",
    "penstock.finish_reason",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "penstock.rehearsal",
    "penstock.entries_dropped",
    "penstock.history_cut",
)

# Levels that are indented; below them lines would be longer than all spans.
_DEEPEST = 32


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
    if item.HasField("queued"):
        return queued_state(item.queued)
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


def tree_lines(trace: Trace) -> Iterator[str]:
    """Yield the lines of a trace: roots by their start, children below their parents.

    A span whose parent is missing is a root.
    """
    yield f"trace {trace.trace_id}"
    ids = {span.span_id for span in trace.spans}
    children: defaultdict[str, list[Span]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda span: (span.start_time_unix_nano, span.span_id)):
        children[span.parent_span_id if span.parent_span_id in ids else ""].append(span)
    begin = min((span.start_time_unix_nano for span in trace.spans), default=0)
    # Spans in a cycle of parents have no root; each is shown once.
    shown: set[str] = set()
    yield from _branches(children, begin, shown)
    lost = [span for span in trace.spans if span.span_id not in shown]
    yield from (_span_line(span, begin) for span in lost)


def _branches(children: dict[str, list[Span]], begin: int, shown: set[str]) -> Iterator[str]:
    """Yield the lines of the roots and of all that is below them, without recursion: spans may be nested without end."""
    # Of each open branch: its spans that are left, the next one last, and their indent.
    stack = [(children.pop("", [])[::-1], "")]
    while stack:
        spans, indent = stack[-1]
        if not spans:
            stack.pop()
            continue
        span = spans.pop()
        shown.add(span.span_id)
        yield f"{indent}{'├─ ' if spans else '└─ '}{_span_line(span, begin)}"
        below = indent + ("│  " if spans else "   ") if len(stack) < _DEEPEST else indent
        for link in span.links:
            yield f"{below}· linked to span {link.span_id} of trace {link.trace_id}"
        # What has been shown is not shown again, where two spans have one id.
        stack.append((children.pop(span.span_id, [])[::-1], below))


def _span_line(span: Span, begin: int) -> str:
    offset = text.span_of_time((span.start_time_unix_nano - begin) / 1e9)
    took = text.span_of_time((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9)
    parts = [
        text.style(span.name, "bold"),
        f"[{span.service or 'unknown'} {text.engine(span.key)}]",
        f"+{offset}",
        took,
    ]
    if span.status == "error":
        message = f": {text.one_line(span.status_message)}" if span.status_message else ""
        parts.append(text.style(f"ERROR{message}", "red"))
    parts += [
        f"{name.rpartition('.')[2] if name.startswith('gen_ai') else name.removeprefix('penstock.')}={text.one_line(span.attributes[name])}"
        for name in MATTERS
        if name in span.attributes
    ]
    return "  ".join(parts)
