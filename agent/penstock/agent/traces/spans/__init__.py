"""From the entries of one request to its spans. Pure; knows no journal and no backend."""

from __future__ import annotations

from penstock.agent.traces.spans import attributes, semconv, standalone_spans
from penstock.agent.traces.spans.entries import RequestKey, alone, request_entries
from penstock.agent.traces.spans.ids import RequestIdentity, TraceContext, external_id
from penstock.agent.traces.spans.loads import Load, ends_a_load, loads
from penstock.agent.traces.spans.model import AttributeValue, Entry, EventEntry, Span
from penstock.agent.traces.spans.request_history import RequestFacts, entry_time
from penstock.agent.traces.spans.request_spans import request_spans

__all__ = [
    "AttributeValue",
    "Entry",
    "EventEntry",
    "Load",
    "RequestFacts",
    "RequestIdentity",
    "RequestKey",
    "Span",
    "TraceContext",
    "alone",
    "attributes",
    "ends_a_load",
    "entry_time",
    "external_id",
    "loads",
    "request_entries",
    "request_spans",
    "semconv",
    "standalone_spans",
]
