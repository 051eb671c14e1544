"""ListRequests: what the journal's index and the snapshots say about requests."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.admin import service
from penstock.agent.admin.calls import events, requests
from penstock.agent.admin.lookups import bounded_scan
from penstock.agent.journal.query.reader import ReadBudget
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import PEER, TIME, deferral_end, deferral_start, transfer_failure
from tests.support.agent.stories import MS, SECOND, closed, outcome

if TYPE_CHECKING:
    from penstock.agent.journal.query.reader import Reader
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.admin_server import AdminHarness

_OTHER = "10.0.0.9:5600"


def _ask(harness: AdminHarness, **fields: Any) -> admin.ListRequestsResponse:
    response: admin.ListRequestsResponse = harness.stub.ListRequests(admin.ListRequestsRequest(**fields))
    return response


def _ids(response: admin.ListRequestsResponse) -> list[str]:
    return [item.request_id for item in response.requests]


def test_a_request_is_summed_up_from_all_that_the_log_says(harness: AdminHarness) -> None:
    """Outcome, mode, peer, cost, and how it ended; entries of several batches and processes together."""
    core, worker = harness.source("0"), harness.source("0", process="worker")
    harness.append(worker, transfer_failure("r"))
    harness.append(core, outcome("r"))
    harness.append(core, closed("r"))
    (item,) = _ask(harness).requests
    assert (item.key.engine, item.request_id, item.outcome, item.mode, item.peer.address) == (
        "0",
        "r",
        common.OUTCOME_RECOMPUTED,
        common.FAILURE_MODE_HANDSHAKE,
        PEER,
    )
    assert (item.tokens_recomputed, item.finish_reason, item.since.ToNanoseconds()) == (400, "stop", TIME)
    assert item.closed.ToNanoseconds() > TIME
    trace = harness.stub.GetTrace(admin.GetTraceRequest(request_id="r"))
    assert item.trace_id == trace.trace_id


def test_filters_choose_by_outcome_peer_time_and_engine(harness: AdminHarness) -> None:
    """Filters work alone and together; rows come newest first."""
    first, second = harness.source("0"), harness.source("1", labels={"role": "prefill"}, role="prefill")
    harness.append(first, outcome("a", time_ns=TIME), closed("a", arrival_time_unix_nano=TIME))
    harness.append(
        first,
        outcome("b", common.OUTCOME_FAILED),
        closed("b", arrival_time_unix_nano=TIME + SECOND, time_ns=TIME + 2 * SECOND),
    )
    harness.append(
        second,
        outcome("c", peer={"address": _OTHER}),
        closed("c", arrival_time_unix_nano=TIME + 2 * SECOND, time_ns=TIME + 3 * SECOND),
    )
    assert _ids(_ask(harness)) == ["c", "b", "a"]
    assert _ids(_ask(harness, sort="age")) == ["a", "b", "c"]
    assert _ids(_ask(harness, outcome=common.OUTCOME_RECOMPUTED)) == ["c", "a"]
    assert _ids(_ask(harness, outcome=common.OUTCOME_RECOMPUTED, peer=_OTHER)) == ["c"]
    assert _ids(_ask(harness, peer=PEER)) == ["b", "a"]
    assert _ids(_ask(harness, selector={"labels": "role=prefill"})) == ["c"]
    assert _ids(_ask(harness, since={"seconds": 60})) == []


def test_the_outcome_filter_returns_that_outcome(harness: AdminHarness) -> None:
    """A request with two causes has two outcomes; unasked, the weightier one counts."""
    core = harness.source("0")
    harness.append(
        core, outcome("r"), outcome("r", common.OUTCOME_FAILED, attempt=2, peer={"address": _OTHER})
    )
    (item,) = _ask(harness).requests
    assert (item.outcome, item.peer.address) == (common.OUTCOME_FAILED, _OTHER)
    (item,) = _ask(harness, outcome=common.OUTCOME_RECOMPUTED).requests
    assert (item.outcome, item.peer.address) == (common.OUTCOME_RECOMPUTED, PEER)


def test_two_servers_may_give_the_same_id(harness: AdminHarness) -> None:
    """Requests of one id on two servers are two rows."""
    for server in ("prefill", "decode"):
        harness.append(harness.source("0", server=server), closed("same"))
    assert sorted(item.key.server for item in _ask(harness).requests) == ["decode", "prefill"]


def test_a_request_that_went_with_its_engine_is_not_open(harness: AdminHarness) -> None:
    """A request is open until its engine counts as lost."""
    core, other = harness.source("0"), harness.source("1")
    harness.append(core, deferral_start("r"))
    (item,) = _ask(harness).requests
    assert (item.deferred, item.finish_reason) == (common.DEFERRAL_REASON_REMOTE_KV, "")
    harness.append(core, batch=Batch(goodbye={"reason": "exit"}))
    harness.append(other, deferral_start("s"))
    by_name = {item.request_id: item for item in _ask(harness).requests}
    assert (by_name["r"].deferred, by_name["r"].finish_reason) == (0, "engine_lost")
    assert not by_name["r"].HasField("closed")
    assert by_name["s"].finish_reason == ""


def test_a_listing_that_is_cut_says_so(harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its limit, by the events that were looked at, by the bytes that were parsed; also if it found nothing."""
    core = harness.source("0")
    for number in range(3):
        harness.append(core, closed(f"r{number}", arrival_time_unix_nano=TIME + number))
    response = _ask(harness, limit=2)
    assert (_ids(response), response.truncated) == (["r2", "r1"], True)
    response = _ask(harness, limit=3)
    assert (len(response.requests), response.truncated) == (3, False)
    monkeypatch.setattr(requests, "MAX_BYTES", 1)
    response = _ask(harness)
    assert (_ids(response), response.truncated) == (["r2"], True)
    monkeypatch.setattr(bounded_scan, "MAX_EVENTS", 2)
    response = _ask(harness, peer="nobody:1")
    assert (_ids(response), response.truncated) == ([], True)
    events = harness.stub.ListEvents(admin.ListEventsRequest(peer="nobody:1"))
    assert (len(events.events), events.truncated) == (0, True)
    with harness.journal.reader() as reader:
        rows = reader.scan(kinds=["request_closed"], limit=10)
        scan = bounded_scan.EventScan(reader, rows, events=2)
        assert [found.event.request_id for found in scan] == ["r2", "r1"]
        assert scan.cut
        allowance = ReadBudget(1)
        rows = reader.scan(kinds=["request_closed"], limit=10, allowance=allowance)
        scan = bounded_scan.EventScan(reader, rows, allowance=allowance)
        assert [found.event.request_id for found in scan] == ["r2"]
        assert scan.cut


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sort": "name"}, "sort 'name' is not a sort order; use age (oldest first), time (newest first),"),
        ({"deferred": True, "outcome": 1}, "a deferred request has no outcome yet"),
        ({"slow": True, "deferred": True}, "give slow, deferred or outcome"),
        ({"slow": True, "outcome": 1}, "give slow, deferred or outcome"),
        ({"selector": {"labels": "("}}, "cannot be read"),
    ],
)
def test_a_wrong_question_is_refused(harness: AdminHarness, fields: dict[str, Any], words: str) -> None:
    """The error names the remedy."""
    with pytest.raises(grpc.RpcError) as caught:
        _ask(harness, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (caught.value.details() or "")


def _row(count: int, oldest: int, peer: str = PEER) -> dict[str, Any]:
    return {
        "reason": common.DEFERRAL_REASON_REMOTE_KV,
        "peer": {"address": peer},
        "count": count,
        "oldest_start_time_unix_nano": oldest,
    }


def test_those_that_wait_now_are_listed_with_the_longest_wait_first(harness: AdminHarness) -> None:
    """Ended requests and those of absent sources are left out."""
    core, gone = harness.source("0"), harness.source("1")
    harness.append(core, deferral_start("late", time_ns=TIME + SECOND), deferral_start("early"))
    harness.append(core, deferral_start("over"), deferral_end("over"))
    harness.append(core, deferral_start("other", peer=_OTHER, time_ns=TIME + 2 * SECOND))
    harness.append(gone, deferral_start("gone"))

    async def leave() -> None:
        harness.registry.disconnect(gone.epoch)

    harness.run(leave())
    response = _ask(harness, deferred=True)
    assert _ids(response) == ["early", "late", "other"]
    assert response.requests[0].deferred == common.DEFERRAL_REASON_REMOTE_KV
    assert response.requests[0].since.ToNanoseconds() == TIME
    assert _ids(_ask(harness, deferred=True, sort="time")) == ["other", "late", "early"]
    assert _ids(_ask(harness, deferred=True, peer=_OTHER)) == ["other"]
    cut = _ask(harness, deferred=True, limit=1)
    assert (_ids(cut), cut.truncated) == (["early"], True)


def test_the_snapshot_decides_what_still_waits(harness: AdminHarness) -> None:
    """A deferral whose end was lost is not shown for ever; one whose start was lost is counted."""
    core = harness.source("0")
    harness.append(core, deferral_start("leaked"), deferral_start("waits", time_ns=TIME + 10 * SECOND))
    assert _ids(_ask(harness, deferred=True)) == ["leaked", "waits"]
    late = TIME + 20 * SECOND
    harness.snapshot(core, Snapshot(time_unix_nano=late, deferred=[_row(3, TIME + 10 * SECOND)]))
    response = _ask(harness, deferred=True)
    assert (_ids(response), response.unnamed_deferred) == (["waits"], 2)
    # The newest may not be in the snapshot yet.
    harness.append(core, deferral_start("new", time_ns=late))
    harness.snapshot(core, Snapshot(time_unix_nano=late))
    response = _ask(harness, deferred=True)
    assert (_ids(response), response.unnamed_deferred) == (["new"], 0)


def test_the_snapshot_names_the_peer_that_the_start_of_a_wait_did_not_know(harness: AdminHarness) -> None:
    """With one snapshot row of that reason its peer is named; with two, none."""
    core = harness.source("0")
    start = deferral_start("waits")
    start.deferral_start.ClearField("peer")
    harness.append(core, start)
    harness.snapshot(core, Snapshot(time_unix_nano=TIME, deferred=[_row(1, TIME)]))
    (found,) = _ask(harness, deferred=True).requests
    assert found.peer.address == _row(1, TIME)["peer"]["address"]
    assert _ids(_ask(harness, deferred=True, peer=found.peer.address)) == ["waits"]
    assert _ids(_ask(harness, deferred=True, peer=_OTHER)) == []
    harness.snapshot(core, Snapshot(time_unix_nano=TIME, deferred=[_row(1, TIME), _row(1, TIME, _OTHER)]))
    (found,) = _ask(harness, deferred=True).requests
    assert not found.HasField("peer")


def test_an_answer_that_is_too_large_is_cut_or_refused_with_a_sentence(
    harness: AdminHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are cut to the newest; other answers are refused and name a narrower question."""
    core = harness.source("0")
    for number in range(3):
        harness.append(core, transfer_failure(f"r{number}", error_text="x" * 4000))
    monkeypatch.setattr(events, "_ANSWER_BYTES", 5000)
    answer = harness.stub.ListEvents(admin.ListEventsRequest())
    assert [item.event.request_id for item in answer.events] == ["r1", "r2"]
    assert answer.truncated
    monkeypatch.setattr(service, "MAX_SEND_BYTES", 50)
    with pytest.raises(grpc.RpcError) as caught:
        _ask(harness)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "the response has 0 MiB, the limit is 0; narrow the request"


def test_questions_take_turns(harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two calls read the log at a time; the status call never waits for them."""
    reading, release = threading.Semaphore(0), threading.Event()

    def explain(_reader: Reader, request_id: str, *_: object) -> admin.Explanation:
        reading.release()
        assert release.wait(60)
        return admin.Explanation(request_id=request_id)

    monkeypatch.setattr(requests, "explain_request", explain)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(harness.stub.Explain, admin.GetTraceRequest(request_id=str(n))) for n in range(4)
        ]
        try:
            assert reading.acquire(timeout=60)
            assert reading.acquire(timeout=60)
            harness.stub.GetStatus(admin.GetStatusRequest())
            assert not reading.acquire(blocking=False)
        finally:
            release.set()
        assert sorted(each.result(60).request_id for each in asked) == ["0", "1", "2", "3"]


def _waited(request_id: str, seconds: float, *, ago: float = 0, **body: Any) -> list[Event]:
    """Build a deferral of *seconds* that ended *ago* seconds before now."""
    end = time.time_ns() - int(ago * SECOND)
    start = end - int(seconds * SECOND)
    return [
        deferral_start(request_id, time_ns=start),
        deferral_end(request_id, start_ns=start, time_ns=end, **body),
    ]


def test_the_slowest_requests_are_found_among_the_newest(harness: AdminHarness) -> None:
    """By time to first token; also those that still wait, and those that wait for long ago."""
    now, core = time.time_ns(), harness.source("0")
    for number in range(30):
        arrival = now - SECOND
        harness.append(
            core,
            *_waited(f"fast{number}", 0.05),
            closed(
                f"fast{number}",
                time_ns=now,
                arrival_time_unix_nano=arrival,
                first_token_time_unix_nano=arrival + SECOND // 10,
            ),
        )
    slow = {
        "arrival_time_unix_nano": now - 8 * SECOND,
        "first_token_time_unix_nano": now - 8 * SECOND + 6600 * MS,
    }
    harness.append(core, *_waited("slow", 6.5, ago=1.5), closed("slow", time_ns=now, **slow))
    long = {"arrival_time_unix_nano": now - 90 * SECOND, "first_token_time_unix_nano": now - 89 * SECOND}
    harness.append(core, closed("long", time_ns=now, **long))
    harness.append(core, deferral_start("waits", time_ns=now - 12 * SECOND))
    assert _ids(_ask(harness, slow=True, limit=3)) == ["waits", "slow", "long"]
    assert _ids(_ask(harness, slow=True, limit=2, sort="duration")) == ["long", "waits"]
    assert _ids(_ask(harness, slow=True, limit=2, sort="wait")) == ["waits", "slow"]
    assert _ids(_ask(harness, sort="wait"))[:2] == ["waits", "slow"]
    response = _ask(harness, slow=True, limit=3)
    waits, found, _ = response.requests
    assert response.truncated
    assert waits.deferred == common.DEFERRAL_REASON_REMOTE_KV
    assert waits.wait.ToSeconds() >= 12
    assert not waits.HasField("time_to_first_token")
    assert (found.duration.ToSeconds(), found.wait.ToMilliseconds()) == (8, 6500)
    assert found.time_to_first_token.ToMilliseconds() == 6600
    (deferred,) = _ask(harness, deferred=True).requests
    assert deferred.wait.ToSeconds() >= 12


def test_a_request_lost_with_its_engine_is_not_getting_slower(harness: AdminHarness) -> None:
    """Its wait ended with its last entry."""
    core = harness.source("0")
    harness.append(core, deferral_start("r", time_ns=time.time_ns() - 600 * SECOND))
    harness.append(core, batch=Batch(goodbye={"reason": "exit"}))
    (item,) = _ask(harness, slow=True).requests
    assert (item.finish_reason, item.HasField("duration"), item.HasField("wait")) == (
        "engine_lost",
        False,
        False,
    )
