"""Pushes of two policies, and what an engine reports of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.proto.v1.policy_pb2 import (
    FAILURE_ACTION_FAIL,
    FAILURE_ACTION_RECOMPUTE,
    KvLoadFailure,
    PolicyBody,
    Push,
    ScheduledPolicy,
)

if TYPE_CHECKING:
    from penstock.proto.v1.policy_pb2 import Report

    from tests.support.agent.fake_agent import FakeAgent


FIELDS = ("kv_load_failure.action",)


def entry(hash_: str, action: Any, valid_for: float = 0.0) -> ScheduledPolicy:
    """Build one entry of a schedule."""
    found = ScheduledPolicy(hash=hash_, body=PolicyBody(kv_load_failure=KvLoadFailure(action=action)))
    if valid_for:
        found.valid_for.FromNanoseconds(round(valid_for * 1e9))
    return found


FAIL = Push(schedule=[entry("h-fail", FAILURE_ACTION_FAIL)])


RECOMPUTE = Push(schedule=[entry("h-recompute", FAILURE_ACTION_RECOMPUTE)])


def last(agent: FakeAgent, kind: str) -> Report:
    """Return the last report of that kind."""
    return [report for report in agent.received.reports if report.WhichOneof("message") == kind][-1]


def count(agent: FakeAgent, kind: str) -> int:
    """Return how many reports of that kind came."""
    return sum(report.WhichOneof("message") == kind for report in agent.received.reports)


def applied(agent: FakeAgent) -> list[tuple[str, str, bool, str]]:
    """Return (cause, hash, accepted, previous hash) of all policy_applied events."""
    events = [event.policy_applied for batch in agent.received.batches() for event in batch.events]
    return [(event.cause, event.hash, event.accepted, event.previous_hash) for event in events]
