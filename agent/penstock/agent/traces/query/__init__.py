"""Answers questions about requests from the journal: a trace, an explanation in sentences, whether an answer may be wrong."""

from __future__ import annotations

from penstock.agent.traces.query.explain import explain_request
from penstock.agent.traces.query.search import remote_request_id
from penstock.agent.traces.query.suspicions import (
    Suspicion,
    is_late_read,
    is_late_write,
    may_spoil,
    suspicions,
)
from penstock.agent.traces.query.trace import get_trace

__all__ = [
    "Suspicion",
    "explain_request",
    "get_trace",
    "is_late_read",
    "is_late_write",
    "may_spoil",
    "remote_request_id",
    "suspicions",
]
