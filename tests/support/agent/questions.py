"""Questions to a journal of stories: a trace, an explanation."""

from __future__ import annotations

from penstock.agent.traces.query.explain import explain_request
from penstock.agent.traces.query.trace import get_trace
from penstock.agent.traces.spans.policy_names import no_policies


def trace_of(book, text):
    """Ask for a trace."""
    with book.journal.reader() as reader:
        return get_trace(reader, text)


def sentences_of(book, text, policies=no_policies):
    """Ask for an explanation."""
    with book.journal.reader() as reader:
        return list(explain_request(reader, text, policies).sentences)
