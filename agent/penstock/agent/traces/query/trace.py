"""The trace of one request from the journal: what the export sends, without sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.agent.traces.query.search import find_request_traces
from penstock.agent.traces.spans import (
    RequestFacts,
    no_policies,
    request_spans,
    semconv,
    standalone_spans,
    with_policy_names,
)
from penstock.agent.traces.spans.sdk_spans import service_name
from penstock.proto.v1 import admin_pb2, common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.journal import Reader
    from penstock.agent.model import Source
    from penstock.agent.traces.query.search import RequestTrace
    from penstock.agent.traces.spans import AttributeValue, PolicyLookup, RequestIdentity, Span


def get_trace(
    reader: Reader,
    request_id: str,
    policies: PolicyLookup = no_policies,
    *,
    described: Callable[[Source], Source] = lambda source: source,
) -> admin_pb2.Trace:
    """Return the spans of a request and of its counterpart on the other engine, as far as this pod knows them.

    *policies* names those that decided. *described* returns a source with the role of its engine.

    Handshakes have traces of their own; those that the request waited for are among the spans.

    Raises:
        NotFoundError: no request has this id, or several unrelated ones.

    """
    requests = find_request_traces(reader, request_id)
    spans: list[Span] = []
    handshakes: dict[str, Span] = {}
    for request in requests:
        spans += sorted(_spans(request), key=_order)
        for entry in request.handshakes:
            handshakes |= {span.span_id: span for span in standalone_spans(entry)}
    spans += sorted(handshakes.values(), key=lambda span: span.start_unix_nano)
    return admin_pb2.Trace(
        trace_id=requests[0].trace_id,
        spans=[
            _span(span, service_name(described(span.source))) for span in with_policy_names(spans, policies)
        ],
        unreadable_batches=reader.unreadable,
    )


def _spans(request: RequestTrace) -> Iterator[Span]:
    """Yield the spans of a request, segment by segment, with the export's ids."""
    ended: RequestIdentity | None = None
    for segment in request.segments:
        facts = RequestFacts.of(
            request.key.request_id,
            segment.entries,
            lost_unix_nano=segment.lost_unix_nano,
            dropped=request.facts.dropped,
        )
        identity, parent = segment.identity(facts, ended)
        for span in request_spans(facts, identity, parent_span_id=parent):
            cut = request.truncated and span.name == semconv.REQUEST
            yield replace(span, attributes={**span.attributes, semconv.HISTORY_CUT: True}) if cut else span
        if segment.ended and ended is None:
            ended = identity


def _order(span: Span) -> tuple[bool, int, str]:
    """Sort requests before what is below them, each by time."""
    return (span.name != semconv.REQUEST, span.start_unix_nano, span.name)


def _text(value: AttributeValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _span(span: Span, service: str) -> admin_pb2.Span:
    key = span.source.key
    return admin_pb2.Span(
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        kind="client" if span.client else "internal",
        start_time_unix_nano=span.start_unix_nano,
        end_time_unix_nano=span.end_unix_nano,
        status="unset" if span.error is None else "error",
        status_message=span.error or "",
        attributes={name: _text(value) for name, value in span.attributes.items()},
        links=[
            admin_pb2.Span.Link(
                trace_id=link.trace_id, span_id=link.span_id, attributes={semconv.LINK_TO: link.to}
            )
            for link in span.links
        ],
        key=common_pb2.EngineKey(server=key.server, engine=key.engine),
        service=service,
        request_id=span.request_id,
    )
