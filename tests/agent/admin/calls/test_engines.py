"""The admin service's calls about engines, peers, events and traces, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.admin.calls.events import Filter, _events_of, watch_events
from penstock.agent.journal.query.reader import Reader
from penstock.agent.model import EngineKey
from penstock.agent.parsing.label_selector import Target
from penstock.agent.policy.manifest.engine_share import engine_identity
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    CHANNEL_EC,
    CHANNEL_EPLB,
    CHANNEL_KV,
    DIRECTION_RECEIVE,
    ERROR_TYPE_REFUSED,
    FAILURE_MODE_HANDSHAKE,
    FAILURE_MODE_LOAD,
    OUTCOME_FAILED,
    ROLE_DECODE,
)
from penstock.proto.v1.ingest_pb2 import Batch, Drop, GuardError
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import (
    PEER,
    TIME,
    add_transfers,
    deferral_end,
    deferral_start,
    event,
    sample_batch,
    transfer_failure,
)
from tests.support.agent.stories import closed, outcome
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from penstock.agent.model import LoggedBatch

    from tests.support.agent.admin_server import AdminHarness

_OTHER = "10.0.0.8:5600"


def _snapshot() -> Snapshot:
    return Snapshot(
        time_unix_nano=TIME,
        engine={"model": "tiny", "kv_connector": "NixlConnector", "vllm_version": "0.32.0"},
        policy={"hash": "", "kv_action": "fail"},
        in_flight=[
            {
                "channel": CHANNEL_KV,
                "peer": {"address": PEER},
                "count": 2,
                "oldest_start_time_unix_nano": TIME,
            },
            {
                "channel": CHANNEL_KV,
                "peer": {"address": PEER},
                "count": 1,
                "oldest_start_time_unix_nano": TIME - 5,
            },
        ],
        deferred=[
            {"reason": 2, "count": 3},
            {"reason": 4, "count": 2, "peer": {"address": PEER}, "oldest_start_time_unix_nano": TIME + 4},
        ],
        leases={"count": 1, "blocks": 7, "oldest_start_time_unix_nano": TIME},
        peers=[{"peer": {"address": PEER, "engine_id": "uuid"}, "connected": True}],
        hooks=[{"name": "scheduler", "installed": False, "reason": "too new"}],
    )


def _events(harness: AdminHarness, **fields: Any) -> list[tuple[str, str]]:
    events = harness.stub.ListEvents(admin.ListEventsRequest(**fields)).events
    return [(item.event.request_id, item.event.WhichOneof("body")) for item in events]


def test_an_engine_is_what_its_sources_say_together(harness: AdminHarness) -> None:
    """A row has the facts, the policy, the leases of its sources, and losses per process."""
    core = harness.source("0")
    worker = harness.source("0", process="worker")
    harness.source("", process="api")
    harness.source("1", role="prefill", role_guessed=True, labels={})
    harness.snapshot(core, _snapshot())
    harness.snapshot(
        worker, Snapshot(leases={"count": 2, "blocks": 1, "oldest_start_time_unix_nano": TIME - 9})
    )
    harness.append(
        core,
        batch=Batch(
            drops=[Drop(reason="queue_full", kind="transfer_sample", count=4)],
            guard_errors=[GuardError(hook="nixl.poll", error_class="KeyError", count=2)],
        ),
    )
    first, second = harness.stub.ListEngines(admin.ListEnginesRequest()).engines
    assert (first.key.engine, first.connected, first.role, first.facts.model) == (
        "0",
        True,
        ROLE_DECODE,
        "tiny",
    )
    assert (first.leases.count, first.leases.blocks, first.leases.oldest_start_time_unix_nano) == (
        3,
        8,
        TIME - 9,
    )
    assert [item.count for item in first.in_flight] == [2, 1]
    assert [source.hello.process for source in first.sources] == ["engine-core", "worker", "api"]
    assert first.sources[0].drops[0].count == 4
    assert first.sources[0].guard_errors[0].hook == "nixl.poll"
    assert not first.in_sync
    assert (second.role_guessed, dict(second.labels), second.HasField("facts")) == (
        True,
        {"role": "prefill"},
        False,
    )
    only = harness.stub.ListEngines(admin.ListEnginesRequest(selector={"labels": "role=prefill"})).engines
    assert [engine.key.engine for engine in only] == ["1"]


def test_the_role_of_a_newer_engine_is_not_known(harness: AdminHarness) -> None:
    """It is listed all the same."""
    harness.source("0", role="unknown", labels={})
    (engine,) = harness.stub.ListEngines(admin.ListEnginesRequest()).engines
    assert (engine.key.engine, engine.role, engine.sources[0].hello.role) == ("0", 0, 0)


def test_an_engine_is_in_sync_once_it_has_acknowledged(harness: AdminHarness) -> None:
    """The row has the wanted hash and the acknowledged one."""
    core = harness.source("0")
    harness.snapshot(core, _snapshot())
    harness.engine("0")
    engine = harness.stub.ListEngines(admin.ListEnginesRequest()).engines[0]
    assert (engine.in_sync, engine.paused, engine.wanted_hash, engine.policy.hash) == (True, False, "", "")
    list(harness.stub.SetPaused(admin.SetPausedRequest(paused=True)))
    assert harness.stub.ListEngines(admin.ListEnginesRequest()).engines[0].paused


def test_an_engine_has_what_a_roll_out_compares(harness: AdminHarness) -> None:
    """Its identity, its counts, and whether it refuses what it was sent."""
    core = harness.source("0")
    harness.append(core, closed("r1"), closed("r2"), outcome("r1", OUTCOME_FAILED), outcome("r2"))
    harness.engine("0")
    listed = harness.stub.ListEngines(admin.ListEnginesRequest()).engines[0]
    found = listed.compared
    assert found.identity.endswith("/0")
    assert found.identity.count("/") == 3
    assert (found.requests, found.failed, found.recomputed_tokens, found.refuses) == (2, 1, 400, False)
    elsewhere = Target(
        EngineKey(f"decode-0/{listed.key.server}", listed.key.engine),
        found.model,
        dict(listed.labels),
        found.identity,
    )
    assert engine_identity(elsewhere) == found.identity


def test_what_a_peer_moved_lately_is_told_by_direction(harness: AdminHarness) -> None:
    """With its bytes, unless no transfer told its size; failures of 15 minutes."""
    core, now = harness.source("0"), time.time_ns()
    mine, other = add_transfers(Batch(), ["a", "b"]), add_transfers(Batch(), ["c"], peer=_OTHER, size=0)
    for batch in (mine, other):
        batch.transfers.end_time_unix_nano[:] = [now] * len(batch.transfers.result)
        harness.append(core, batch=batch)
    harness.append(core, transfer_failure("d", time_ns=now - 5 * 60 * 10**9))
    found = {row.peer.address: row for row in harness.stub.ListPeers(admin.ListPeersRequest()).peers}
    (way,), (unsized,) = found[PEER].traffic, found[_OTHER].traffic
    assert (way.last_15_minutes.transfers_ok, way.last_15_minutes.bytes) == (2, 2 << 20)
    assert (unsized.last_15_minutes.transfers_ok, unsized.last_15_minutes.HasField("bytes")) == (1, False)
    assert (found[PEER].failures_last_minute, found[PEER].failures_last_15_minutes) == (0, 1)


def test_peers_come_from_counters_log_and_snapshots(harness: AdminHarness) -> None:
    """Transfers, failures by mode, in flight now, last failure."""
    core = harness.source("0")
    other = harness.source("1", role="prefill", labels={"role": "prefill"})
    harness.append(core, batch=sample_batch(["a", "b"]))
    harness.append(core, transfer_failure("c", time_ns=TIME + 3), transfer_failure("d", time_ns=TIME + 1))
    harness.append(other, batch=add_transfers(Batch(), ["e"], peer=_OTHER))
    harness.snapshot(core, _snapshot())
    first, second = harness.stub.ListPeers(admin.ListPeersRequest(state="all")).peers
    assert (first.key.engine, first.peer.address, first.peer.engine_id) == ("0", PEER, "uuid")
    assert (first.transfers_ok, first.transfers_failed, first.in_flight) == (2, 0, 3)
    assert first.mean_duration_seconds == pytest.approx(0.01)
    assert first.mean_duration_at_least_seconds == pytest.approx(0.01)
    # By the clock of the engine, which is a year behind.
    (way,) = first.traffic
    assert (way.channel, way.direction, way.last_15_minutes.transfers_ok) == (
        CHANNEL_KV,
        DIRECTION_RECEIVE,
        2,
    )
    assert way.last_15_minutes.bytes == 2 << 20
    assert [(f.mode, f.error_type, f.count) for f in first.failures] == [
        (FAILURE_MODE_HANDSHAKE, ERROR_TYPE_REFUSED, 2)
    ]
    assert first.last_failure.ToNanoseconds() == TIME + 3
    assert first.oldest_in_flight.ToNanoseconds() == TIME - 5
    assert (first.deferred, first.oldest_deferred.ToNanoseconds()) == (2, TIME + 4)
    assert first.status.connected
    assert (second.key.engine, second.peer.address, second.transfers_ok) == ("1", _OTHER, 1)
    prefill = {"labels": "role=prefill"}
    only = harness.stub.ListPeers(admin.ListPeersRequest(selector=prefill, state="all")).peers
    assert [peer.peer.address for peer in only] == [_OTHER]
    # What was counted is old; the first engine reports its peer as connected.
    active = harness.stub.ListPeers(admin.ListPeersRequest())
    assert ([peer.peer.address for peer in active.peers], active.left_out) == ([PEER], 1)
    retired = harness.stub.ListPeers(admin.ListPeersRequest(state="retired"))
    assert ([peer.peer.address for peer in retired.peers], retired.left_out) == ([_OTHER], 1)


@pytest.mark.parametrize("method", ["ListEngines", "ListPeers"])
def test_a_state_that_is_none(harness: AdminHarness, method: str) -> None:
    """An unknown state is refused; the error lists the known ones."""
    request = getattr(admin, f"{method}Request")(state="gone")
    with pytest.raises(grpc.RpcError, match="state is 'gone'; give ") as caught:
        getattr(harness.stub, method)(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_events_of_a_channel_that_they_do_not_name(harness: AdminHarness) -> None:
    """A rebalance is EPLB's, a handshake is KV's, though their messages have no such field."""
    core = harness.source()
    harness.append(core, event("eplb_rebalance", step=1), event("handshake", id=7))
    assert _events(harness, channel=CHANNEL_EPLB) == [("", "eplb_rebalance")]
    assert _events(harness, channel=CHANNEL_KV) == [("", "handshake")]


def test_events_are_found_by_what_they_are_about(harness: AdminHarness) -> None:
    """Filters: kind, channel, mode, peer, request and engine. Returns the newest events, oldest first."""
    core = harness.source("0")
    other = harness.source("1", role="prefill", labels={"role": "prefill"})
    harness.append(core, transfer_failure("a"), deferral_start("b"), deferral_end("b"))
    harness.append(core, transfer_failure("c", peer=_OTHER, channel=CHANNEL_EC, mode=FAILURE_MODE_LOAD))
    harness.append(other, deferral_start("d"))
    a, c, d = ("a", "transfer_failure"), ("c", "transfer_failure"), ("d", "deferral_start")
    b = [("b", "deferral_start"), ("b", "deferral_end")]
    assert _events(harness) == [a, *b, c, d]
    assert _events(harness, kinds=["transfer_failure"]) == [a, c]
    assert _events(harness, channel=CHANNEL_EC) == [c]
    assert _events(harness, mode=FAILURE_MODE_HANDSHAKE) == [a]
    assert _events(harness, peer=_OTHER) == [c]
    assert _events(harness, request_id="b") == b
    assert _events(harness, selector={"labels": "role=prefill"}) == [d]
    assert _events(harness, selector={"labels": "role=prefill"}, kinds=["transfer_failure"]) == []
    assert _events(harness, since={"seconds": 60}) == []
    cut = harness.stub.ListEvents(admin.ListEventsRequest(limit=2))
    assert (len(cut.events), cut.truncated) == (2, True)
    assert not harness.stub.ListEvents(admin.ListEventsRequest(limit=5)).truncated
    first = harness.stub.ListEvents(admin.ListEventsRequest(request_id="c")).events[0]
    assert (first.key.engine, first.process, first.batch, first.index) == ("0", "engine-core", 2, 0)


def test_a_watch_yields_each_event_once_and_in_order(harness: AdminHarness) -> None:
    """First the events since the given time, then new ones; the stream ends with the agent."""
    core = harness.source("0")
    now = time.time_ns()
    harness.append(core, transfer_failure("before", time_ns=now))
    seen: list[str] = []

    def watch() -> None:
        request = admin.ListEventsRequest(kinds=["transfer_failure"], since={"seconds": 600})
        for item in harness.stub.WatchEvents(request):
            seen.append(item.event.request_id)  # noqa: PERF401  (looked at while it grows)

    thread = threading.Thread(target=watch)
    thread.start()
    wait_until(lambda: seen == ["before"], "the watch shows what was there")
    for number in range(20):
        harness.append(core, transfer_failure(f"r{number}", time_ns=now), deferral_start("x", time_ns=now))
    wait_until(lambda: len(seen) == 21, "the watch shows what came")
    harness.run(_close(harness))
    thread.join(60)
    assert seen == ["before", *(f"r{number}" for number in range(20))]


async def _close(harness: AdminHarness) -> None:
    harness.service.close()


def test_a_trace_and_its_explanation_are_read_from_the_journal(harness: AdminHarness) -> None:
    """By the request's id; the tree names the request and the failure."""
    core = harness.source("0")
    harness.append(core, transfer_failure("req-1", error_text="connection refused"))
    trace = harness.stub.GetTrace(admin.GetTraceRequest(request_id="req-1"))
    assert "penstock.request" in [span.name for span in trace.spans]
    explanation = harness.stub.Explain(admin.GetTraceRequest(request_id="req-1"))
    assert explanation.trace_id == trace.trace_id
    assert any(PEER in sentence for sentence in explanation.sentences)


def test_the_agent_says_how_it_is(harness: AdminHarness) -> None:
    """The status has version, state and log; other parts add their fields."""
    core = harness.source("0")
    harness.append(core, transfer_failure("a"))
    harness.append(core, transfer_failure("b"))
    status = harness.stub.GetStatus(admin.GetStatusRequest())
    assert (status.log_first, status.log_last, status.degraded, status.metrics_address) == (
        1,
        2,
        "",
        "127.0.0.1:1",
    )
    assert status.state_bytes > 0
    assert status.version
    assert status.now.ToSeconds() > TIME // 10**9


def test_a_watch_of_a_request_yields_what_a_listing_does(harness: AdminHarness) -> None:
    """Also the events of the other side, which name it as the remote one, and handshakes that it waits for."""
    core = harness.source("0")
    harness.append(
        core,
        transfer_failure("decode-1", remote_request_id="prefill-1"),
        event("handshake", "", waiting_request_ids=["prefill-1"]),
        transfer_failure("other"),
    )
    request = admin.ListEventsRequest(request_id="prefill-1")
    listed = [item.index for item in harness.stub.ListEvents(request).events]
    with harness.journal.reader() as reader:
        watched = _events_of(reader, reader.batches(0), Filter.of(request))
    assert [item.index for item in watched] == listed == [0, 1]


def test_a_journal_that_cannot_be_read_is_a_sentence(harness: AdminHarness) -> None:
    """The error has a sentence, not an exception's name."""
    with contextlib.closing(sqlite3.connect(harness.journal.path)) as database:
        database.execute("DROP TABLE kinds")
    with pytest.raises(grpc.RpcError) as caught:
        harness.stub.ListEvents(admin.ListEventsRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert (caught.value.details() or "").endswith("journal.db' cannot be used: no such table: kinds")


def test_an_answer_is_newer_than_the_snapshot_before_it(harness: AdminHarness) -> None:
    """An acknowledgement counts at once; the snapshot that shows it follows within a second."""
    facts = {"model": "tiny", "kv_connector": "NixlConnector", "kv_load_failure_policy": "fail"}
    harness.snapshot(harness.source("0"), Snapshot(engine=facts, policy={"kv_action": "fail"}))
    harness.engine("0")

    def shown() -> tuple[bool, bool, str, str]:
        (engine,) = harness.stub.ListEngines(admin.ListEnginesRequest()).engines
        return engine.paused, engine.in_sync, engine.policy.kv_action, engine.wanted_kv_action

    assert shown() == (False, True, "fail", "")
    manifest = json.dumps(document("p"))
    harness.stub.ApplyPolicy(admin.ApplyPolicyRequest(manifest_json=manifest, all=True))
    list(harness.stub.WatchRollout(admin.WatchRolloutRequest(timeout={"seconds": 60})))
    assert shown() == (False, True, "recompute", "recompute")
    list(harness.stub.SetPaused(admin.SetPausedRequest(paused=True)))
    assert shown() == (True, False, "fail", "recompute")


def test_the_engines_of_a_data_parallel_server_say_how_many_they_are(harness: AdminHarness) -> None:
    """The count comes from the agent: vLLM tells each engine of a dense model a size of 1."""
    alone = Snapshot(engine={"data_parallel_size": 1})
    for server, engine in (("dp", "0"), ("dp", "2"), ("other", "0")):
        harness.snapshot(harness.source(engine, server=server), alone)
    engines = harness.stub.ListEngines(admin.ListEnginesRequest()).engines
    assert [(item.key.server, item.facts.data_parallel_size) for item in engines] == [
        ("dp", 3), ("dp", 3), ("other", 1),
    ]  # fmt: skip


def test_an_engine_that_refuses_says_why(harness: AdminHarness) -> None:
    """The reason comes from its answer to the push; snapshots may not have it yet."""
    harness.source("0")
    harness.engine("0", refuse=lambda push: "no budget here" if push.schedule else "")
    manifest = json.dumps(document("p"))
    harness.stub.ApplyPolicy(admin.ApplyPolicyRequest(manifest_json=manifest, all=True))
    list(harness.stub.WatchRollout(admin.WatchRolloutRequest(timeout={"seconds": 60})))
    (engine,) = harness.stub.ListEngines(admin.ListEnginesRequest()).engines
    assert (engine.in_sync, engine.policy.last_error) == (False, "kvLoadFailure.action: no budget here")


def test_a_watch_that_is_given_up_lets_its_thread_finish_before_its_reader_goes(
    harness: AdminHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite must not be closed under a thread that reads: that would end the whole agent, by SIGSEGV."""
    reading, release = threading.Event(), threading.Event()
    states: list[str] = []

    class SlowReader(Reader):
        def batches(self, after: int, limit: int = 256, max_bytes: int = sys.maxsize) -> list[LoggedBatch]:
            reading.set()
            assert release.wait(60)
            states.append("read")
            return super().batches(after, limit, max_bytes)

        def close(self) -> None:
            states.append("closed")
            super().close()

    monkeypatch.setattr(harness.journal, "reader", lambda _stopped: SlowReader(harness.journal.path))

    async def give_up() -> None:
        events: Any = watch_events(harness.service.agent, harness.service._tail, admin.ListEventsRequest())
        task = asyncio.ensure_future(anext(events))
        await asyncio.to_thread(reading.wait, 60)
        for _ in range(2):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert states == []
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await events.aclose()

    harness.run(give_up())
    assert states == ["read", "closed"]
