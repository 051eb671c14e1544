"""From the entries of one request to its spans. Pure; knows no journal and no backend."""

from __future__ import annotations

from penstock.agent.traces.spans import attributes, semconv
from penstock.agent.traces.spans.deferral_pairs import covered_time
from penstock.agent.traces.spans.ids import RequestIdentity, TraceContext, external_id
from penstock.agent.traces.spans.loads import Load, ends_load, request_loads
from penstock.agent.traces.spans.model import (
    AttributeValue,
    Entry,
    EventEntry,
    RequestKey,
    Span,
    request_entries,
    without_batch,
)
from penstock.agent.traces.spans.policy_names import (
    PolicyLookup,
    deciding_policies,
    no_policies,
    with_policy_names,
)
from penstock.agent.traces.spans.request_history import RequestFacts, entry_time
from penstock.agent.traces.spans.request_spans import request_spans
from penstock.agent.traces.spans.standalone_spans import STANDALONE_KINDS, standalone_spans

__all__ = [
    "STANDALONE_KINDS",
    "AttributeValue",
    "Entry",
    "EventEntry",
    "Load",
    "PolicyLookup",
    "RequestFacts",
    "RequestIdentity",
    "RequestKey",
    "Span",
    "TraceContext",
    "attributes",
    "covered_time",
    "deciding_policies",
    "ends_load",
    "entry_time",
    "external_id",
    "no_policies",
    "request_entries",
    "request_loads",
    "request_spans",
    "semconv",
    "standalone_spans",
    "with_policy_names",
    "without_batch",
]
