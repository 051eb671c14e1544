"""The detail of a request: its spans as bars with its gates, what ``agentctl explain`` says, and its trace elsewhere."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.agent.batch import GATES
from penstock.agent.page.details.arguments import name_of
from penstock.agent.page.details.detail import (
    Detail,
    GateBar,
    WaterfallRow,
    WaterfallSection,
    sentences,
    text_section,
)
from penstock.agent.page.wire import AdminCalls, AnswerError, about, milliseconds, plain
from penstock.agent.server.options import TRACE_ID
from penstock.agent.traces.spans import semconv
from penstock.agent.views import text
from penstock.agent.views.requests import MATTERS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_BARS = 300
_WAITS = ("deferral", "wait", "queue")
_TRACE_ID = re.compile("[0-9a-f]{32}")


async def request_detail(calls: AdminCalls, query: Mapping[str, str], template: str) -> Detail:
    """Return the spans of ``agentctl trace`` as bars, and what ``agentctl explain`` says.

    *template* is where the operator's trace backend shows a trace; empty for nowhere.

    Raises:
        AnswerError: no such request is known, or nobody answers.

    """
    wanted = name_of(query, "id")
    asked = admin.GetTraceRequest(request_id=wanted)
    explained = await calls.call("Explain", asked)
    try:
        trace = await calls.call("GetTrace", asked)
    except AnswerError as error:
        trace, why = admin.Trace(), error.sentence
    else:
        why = ""
    bars = _waterfall(trace, why, round(calls.clock() * 1e9))
    parts = [
        f"{part.part.replace('_', ' ')}: {text.span_of_time(part.duration.ToNanoseconds() / 1e9)}, {part.share:.0%} of the wait"
        for part in explained.wait_parts
    ]
    return Detail(
        title=plain(f"Request {explained.request_id or wanted}"),
        sentences=sentences(explained.sentences),
        command=about("explain", name=wanted),
        sections=(bars, *([text_section("What the wait was made of", parts, folded=True)] if parts else [])),
        trace_url=_trace_url(template, explained.trace_id or trace.trace_id),
    )


def _trace_url(template: str, trace_id: str) -> str:
    """Return *template* with a trace id; empty without one. Pure."""
    return template.replace(TRACE_ID, trace_id) if template and _TRACE_ID.fullmatch(trace_id) else ""


def _waterfall(trace: admin.Trace, why: str, now: int) -> WaterfallSection:
    """Return the spans of a trace as bars; *why* there are none; *now* is in nanoseconds. Pure."""
    spans = sorted(trace.spans, key=lambda span: (span.start_time_unix_nano, span.span_id))[:_MAX_BARS]
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
        text=plain(", ".join(said)),
        state=state,
        gates=tuple(_gates(span)),
    )


def _gates(span: admin.Span) -> Iterator[GateBar]:
    """Yield where a request was before its first token."""
    begin = span.start_time_unix_nano / 1e6
    for gate in GATES:
        said = span.attributes.get(f"{semconv.FIRST_TOKEN_GATE}.{gate}", "")
        # Of a trace that another version wrote.
        with suppress(ValueError):
            seconds = float(said)
            if math.isfinite(seconds) and seconds > 0:
                yield GateBar(gate, begin, begin + seconds * 1e3)
                begin += seconds * 1e3
