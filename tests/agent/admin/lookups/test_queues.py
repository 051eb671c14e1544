"""What schedulers have: counted, named, and one request in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.admin.lookups.queues import QueuedRequests, queued_clause, without_requests
from penstock.agent.model import EngineKey
from penstock.agent.stalls import Stall, StallKind
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import snapshot_pb2 as snapshots
from penstock.proto.v1.snapshot_pb2 import QueuedRequest, SchedulerQueue

KEY, OTHER = EngineKey("", "0"), EngineKey("", "1")
SECOND = 10**9


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2**32 - 1)), max_size=8), st.integers(0, 2**32 - 1)
)
def test_the_counts_are_of_all_and_never_too_large(rows: list[tuple[int, int]], running: int) -> None:
    """Whatever engines say: reasons of tomorrow, one reason twice, more than a field holds."""
    queue = SchedulerQueue(running=running, requests=[{"request_id": "r"}])
    queue.waiting.extend(snapshots.WaitingRequests(reason=reason, count=count) for reason, count in rows)  # type: ignore[arg-type]
    response = admin.ListRequestsResponse()
    QueuedRequests({KEY: queue, OTHER: queue}, ()).count_into(response)
    most = 2**32 - 1
    assert response.running == min(2 * running, most)
    every = 2 * max(0, running + sum(count for _, count in rows) - 1)
    assert response.unnamed_queued == min(every, most)
    reasons = [row.reason for row in response.waiting]
    assert reasons == sorted({reason for reason, _ in rows})
    for row in response.waiting:
        assert row.count == min(2 * sum(count for reason, count in rows if reason == row.reason), most)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cmpl-abcdef-0-1234", ["cmpl-abcdef-0-1234"]),
        ("cmpl-abcdef-0", ["cmpl-abcdef-0-1234", "cmpl-abcdef-0-12345"]),
        ("abcdef", ["cmpl-abcdef-0-1234", "cmpl-abcdef-0-12345"]),
        ("0", []),
        ("", []),
        ("none", []),
    ],
)
def test_a_request_by_what_people_call_it(text: str, found: list[str]) -> None:
    """Its id in full is no prefix of another's; a short piece of an id names nothing."""
    names = ("cmpl-abcdef-0-1234", "cmpl-abcdef-0-12345", "chatcmpl-other-1")
    queue = SchedulerQueue(requests=[{"request_id": name} for name in names])
    assert [each.request_id for _, each in QueuedRequests({KEY: queue}, ()).named(text)] == found


@pytest.mark.parametrize("reason", [*snapshots.QueueReason.values(), 999])
def test_each_reason_has_words(reason: int) -> None:
    """One of a newer engine, too."""
    said = queued_clause(QueuedRequest(waiting=reason), SchedulerQueue(), (), SECOND)  # type: ignore[arg-type]
    assert said.startswith("waits for " if reason else "runs now")
    assert ("does not know" in said) == (reason in {snapshots.QUEUE_REASON_OTHER, 999})


def test_why_it_waits() -> None:
    """By the standstill of its engine that lasts, else by what is free; not by another thing that stands still."""
    request = QueuedRequest(
        waiting=snapshots.QUEUE_REASON_CAPACITY, arrival_time_unix_nano=88 * SECOND, blocks=1
    )
    queue = SchedulerQueue(running=7, total_blocks=127, free_blocks=3)
    dead = Stall(StallKind.THREAD_DEAD, 1, 0, "a thread ended")
    said = queued_clause(request, queue, (dead,), 100 * SECOND)
    assert (
        said == "waits for KV blocks now (it arrived 12 s ago, 1 KV block): 3 of 127 are free, 7 requests run"
    )
    standing = Stall(StallKind.NO_CAPACITY, 1, 0, "nothing runs")
    assert queued_clause(request, queue, (dead, standing), 100 * SECOND).endswith(": nothing runs")


def test_a_copy_names_no_request() -> None:
    """And what it was made of still does."""
    queue = SchedulerQueue(running=1, requests=[{"request_id": "r"}])
    assert without_requests(queue) == SchedulerQueue(running=1)
    assert len(queue.requests) == 1
