"""Which agents of a relay did not answer, in a sentence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from penstock.agent.views import text
from penstock.proto.v1.admin_pb2 import RelayCoverage

if TYPE_CHECKING:
    from collections.abc import Iterable

COVERAGE = "penstock-relay-bin"
"""Key of a relay's trailing metadata: a RelayCoverage, there if an agent is missing."""


def coverage_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> RelayCoverage | None:
    """Return which agents answered; None where all did, and of an agent."""
    for key, value in metadata or ():
        if key == COVERAGE and isinstance(value, bytes):
            try:
                return RelayCoverage.FromString(value)
            except DecodeError:
                return None
    return None


def missing_agents(coverage: RelayCoverage | None) -> str:
    """Return the missing agents: ``197 of 200 agents answered; not: decode-17 (no answer in 2 s) …``; empty for none."""
    if coverage is None:
        return ""
    named = [f"{text.one_line(each.name)} ({text.one_line(each.reason, 160)})" for each in coverage.missing]
    more = coverage.asked - coverage.answered - len(named)
    rest = f" and {more} more" if more > 0 else ""
    return f"{coverage.answered} of {text.count(coverage.asked, 'agent')} answered; not: {', '.join(named)}{rest}"
