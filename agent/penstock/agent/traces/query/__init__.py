"""Questions about one request, answered from the journal: its trace, and one sentence."""

from __future__ import annotations

from penstock.agent.traces.query.explain import explain
from penstock.agent.traces.query.trace import get_trace

__all__ = [
    "explain",
    "get_trace",
]
