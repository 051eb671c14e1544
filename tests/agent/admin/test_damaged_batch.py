"""A damaged batch is left out of each answer and counted there; the rest of the log is answered."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import OUTCOME_FAILED

from tests.support.agent.batches import event, noise, transfer_failure

SPOILT = 3
BATCHES = 6
PATIENCE = 60.0


@pytest.fixture(params=["packed", "plain", "not even bytes", "another batch"])
def spoilt(harness, request):
    """Return a client of a log whose third batch is damaged."""
    source = harness.source()
    for number in range(1, BATCHES + 1):
        text = noise(20) + "x" * (2_000 if request.param == "packed" else 0)
        harness.append(
            source,
            transfer_failure("r", error_text=text, time_ns=number),
            event("load_outcome", "r", outcome=OUTCOME_FAILED, time_ns=number),
        )
    with closing(sqlite3.connect(harness.journal.path)) as database:
        if request.param == "not even bytes":
            database.execute("UPDATE batches SET body = 7 WHERE id = ?", (SPOILT,))
        elif request.param == "another batch":
            database.execute(
                "UPDATE batches SET (body, packed) = (SELECT body, packed FROM batches WHERE id = 1) WHERE id = ?",
                (SPOILT,),
            )
        else:
            (body,) = database.execute("SELECT body FROM batches WHERE id = ?", (SPOILT,)).fetchone()
            damaged = bytearray(body)
            damaged[len(body) // 2] ^= 1
            database.execute("UPDATE batches SET body = ? WHERE id = ?", (bytes(damaged), SPOILT))
        database.commit()
    return harness.stub


def test_a_damaged_batch_costs_itself(spoilt):
    """Events, requests, traces and explanations leave out one batch, and count it."""
    for request in (
        admin.ListEventsRequest(kinds=["transfer_failure"]),
        admin.ListEventsRequest(kinds=["transfer_failure"], request_id="r"),
    ):
        events = spoilt.ListEvents(request, timeout=PATIENCE)
        assert [logged.batch for logged in events.events] == [1, 2, 4, 5, 6]
        assert events.unreadable_batches == 1
    requests = spoilt.ListRequests(admin.ListRequestsRequest(), timeout=PATIENCE)
    assert [item.request_id for item in requests.requests] == ["r"]
    assert requests.unreadable_batches == 1
    assert spoilt.Explain(admin.GetTraceRequest(request_id="r"), timeout=PATIENCE).unreadable_batches == 1
    trace = spoilt.GetTrace(admin.GetTraceRequest(request_id="r"), timeout=PATIENCE)
    assert trace.spans
    assert trace.unreadable_batches == 1


def test_a_watch_continues_behind_it(spoilt):
    """A watch from the log's beginning continues behind the damaged batch."""
    stream = spoilt.WatchEvents(
        admin.ListEventsRequest(kinds=["transfer_failure"], after_batch=0), timeout=PATIENCE
    )
    assert [next(stream).batch for _ in range(BATCHES - 1)] == [1, 2, 4, 5, 6]
    stream.cancel()


def test_a_log_without_damage_counts_none(harness):
    """The answer reports no damage."""
    harness.append(harness.source(), transfer_failure("r"))
    answer = harness.stub.ListEvents(admin.ListEventsRequest(), timeout=PATIENCE)
    assert (len(answer.events), answer.unreadable_batches) == (1, 0)
