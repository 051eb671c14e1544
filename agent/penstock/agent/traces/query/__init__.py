"""Answers questions about one request from the journal: its trace, and an explanation in sentences."""

from __future__ import annotations

from penstock.agent.traces.query.explain import explain_request
from penstock.agent.traces.query.trace import get_trace

__all__ = [
    "explain_request",
    "get_trace",
]
