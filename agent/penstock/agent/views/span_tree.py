"""The spans of a request as a tree. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1.admin_pb2 import Span, Trace

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
    yield from (_line(span, begin) for span in lost)


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
        yield f"{indent}{'├─ ' if spans else '└─ '}{_line(span, begin)}"
        below = indent + ("│  " if spans else "   ") if len(stack) < _DEEPEST else indent
        for link in span.links:
            yield f"{below}· linked to span {link.span_id} of trace {link.trace_id}"
        # What has been shown is not shown again, where two spans have one id.
        stack.append((children.pop(span.span_id, [])[::-1], below))


def _line(span: Span, begin: int) -> str:
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
