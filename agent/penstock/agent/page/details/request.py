"""One request: why, in sentences, and both sides as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.page.details.arguments import name_of
from penstock.agent.page.details.detail import Detail, WaterfallRow, WaterfallSection, sentences, text_section
from penstock.agent.page.wire import AdminCalls, AnswerError, about, milliseconds, plain
from penstock.agent.views import text
from penstock.agent.views.span_tree import MATTERS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_ROWS = 300
_WAITS = ("deferral", "wait", "queue")


async def request_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return what ``agentctl explain`` says, and the spans of ``agentctl trace`` as bars."""
    wanted = name_of(query, "id")
    asked = admin.GetTraceRequest(request_id=wanted)
    explained = await calls.call("Explain", asked)
    try:
        trace = await calls.call("GetTrace", asked)
    except AnswerError as error:
        trace, why = admin.Trace(), error.sentence
    else:
        why = ""
    bars = waterfall(trace, why, round(calls.clock() * 1e9))
    parts = [
        f"{part.part.replace('_', ' ')}: {text.span_of_time(part.duration.ToNanoseconds() / 1e9)}, {part.share:.0%} of the wait"
        for part in explained.wait_parts
    ]
    return Detail(
        title=plain(f"Request {explained.request_id or wanted}"),
        sentences=sentences(explained.sentences),
        command=about("explain", name=wanted),
        sections=(*([text_section("What the wait was made of", parts)] if parts else []), bars),
    )


def waterfall(trace: admin.Trace, why: str, now: int) -> WaterfallSection:
    """Return the spans of a trace as bars; *why* there are none; *now* is in nanoseconds. Pure."""
    spans = sorted(trace.spans, key=lambda span: (span.start_time_unix_nano, span.span_id))[:_MAX_ROWS]
    start = min((span.start_time_unix_nano for span in spans), default=0)
    end = max((_end(span, now) for span in spans), default=0)
    left_out = len(trace.spans) - len(spans)
    sentence = (
        f"{left_out} later spans are left out" if left_out else "" if spans else why or "no span is known"
    )
    return WaterfallSection(
        "Where its time went",
        milliseconds(start),
        milliseconds(end),
        tuple(_bar(span, now) for span in spans),
        plain(sentence),
    )


def _end(span: admin.Span, now: int) -> int:
    """Return when a span ended, or now for one that has not."""
    if span.end_time_unix_nano > span.start_time_unix_nano:
        return span.end_time_unix_nano
    return max(now, span.start_time_unix_nano)


def _bar(span: admin.Span, now: int) -> WaterfallRow:
    state = "wait" if any(word in span.name for word in _WAITS) else "ok"
    if span.end_time_unix_nano <= span.start_time_unix_nano:
        state = "open"
    if span.status == "error":
        state = "error"
    end = _end(span, now)
    took = text.span_of_time((end - span.start_time_unix_nano) / 1e9)
    said = [text.one_line(span.status_message)] if span.status_message else []
    said += [
        f"{name.removeprefix('penstock.')}={text.one_line(span.attributes[name])}"
        for name in MATTERS
        if name in span.attributes
    ]
    return WaterfallRow(
        side=plain(text.engine(span.key)),
        name=plain(span.name),
        start=milliseconds(span.start_time_unix_nano),
        end=milliseconds(end),
        text=plain(", ".join([took, *said])),
        state=state,
    )
