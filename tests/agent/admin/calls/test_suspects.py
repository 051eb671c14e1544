"""ListSuspects and ListHolders of a real admin service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.admin.calls import suspects as calls
from penstock.agent.admin.calls.suspects import MAX_LATE_IDS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1.snapshot_pb2 import (
    BLOCK_HOLDER_ABORTED,
    BLOCK_HOLDER_LEASE,
    BLOCK_HOLDER_PINNED,
    EngineFacts,
    HeldBlocks,
    Leases,
    Snapshot,
)

from tests.support.agent.batches import PEER, event, transfer_failure
from tests.support.agent.stories import MS, closed, closed_decode

if TYPE_CHECKING:
    from penstock.agent.model import Source
    from penstock.proto.v1.events_pb2 import Event

    from tests.support.agent.admin_server import AdminHarness

LATE, NAN = events.SUSPECT_REASON_LATE_READ, events.SUSPECT_REASON_NAN


def late_read(request_id: str, **fields: Any) -> Event:
    """Return the late read of a request's blocks, now."""
    body = {"direction": common.DIRECTION_SEND, "error_type": common.ERROR_TYPE_EVICTED, **fields}
    return transfer_failure(request_id, mode=common.FAILURE_MODE_LATE_READ, time_ns=time.time_ns(), **body)


def ask(harness: AdminHarness, **fields: Any) -> admin.ListSuspectsResponse:
    """Return the answer to a request."""
    response: admin.ListSuspectsResponse = harness.stub.ListSuspects(admin.ListSuspectsRequest(**fields))
    return response


def test_both_sides_in_one_log(harness: AdminHarness) -> None:
    """The answer is named, the engine whose blocks it read, and the trace that both share; each rank's report is one."""
    decode, prefill = harness.source("0"), harness.source("1", labels={"role": "prefill"}, role="prefill")
    harness.append(decode, closed_decode("answer", "kept", time_ns=time.time_ns()))
    harness.append(prefill, closed("kept", kv_role=common.ROLE_PREFILL))
    harness.append(prefill, late_read("kept"), late_read("kept", connector="other"))
    (suspect,) = ask(harness).suspects
    assert (suspect.request_id, suspect.key.engine) == ("answer", "0")
    assert (suspect.peer_request_id, suspect.peer_key.engine) == ("kept", "1")
    assert list(suspect.reasons) == [LATE]
    assert len(suspect.evidence) == 1
    assert (suspect.finish_reason, suspect.missing, suspect.cleared) == ("stop", "", False)
    assert suspect.trace_id == harness.stub.GetTrace(admin.GetTraceRequest(request_id="answer")).trace_id
    assert not ask(harness, selector={"labels": "role=prefill"}).suspects
    (said,) = [
        each
        for each in harness.stub.Explain(admin.GetTraceRequest(request_id="answer")).sentences
        if each.startswith("The answer to answer is suspect")
    ]
    assert "already freed" in said


def test_late_reads_that_spoil_no_answer_are_cleared(harness: AdminHarness) -> None:
    """Only where all readers are known to have given none, whatever engines are asked about."""
    decode, prefill = harness.source("0"), harness.source("1", labels={"role": "prefill"}, role="prefill")
    now = time.time_ns()
    harness.append(decode, closed_decode("left", "of-left", time_ns=now, finish_reason="error"))
    harness.append(decode, closed_decode("answer", "of-both", time_ns=now))
    harness.append(decode, closed_decode("gone", "of-both", time_ns=now, finish_reason="error"))
    harness.append(prefill, *(late_read(each) for each in ("of-left", "of-both", "of-nobody")))
    for selector in ({}, {"labels": "role=prefill"}):
        assert list(ask(harness, selector=selector).cleared_late_request_ids) == ["of-left"]


def test_one_side_alone(harness: AdminHarness) -> None:
    """The owner of the blocks lists its half and says what is missing; the reader answers a relay's question."""
    prefill = harness.source("1", labels={"role": "prefill"}, role="prefill")
    harness.append(prefill, late_read("kept"))
    (half,) = ask(harness).suspects
    assert (half.request_id, half.HasField("key"), half.peer_request_id) == ("", False, "kept")
    assert half.peer_key.engine == "1"
    assert "does not have the request" in half.missing
    harness.append(harness.source("0"), closed_decode("answer", "elsewhere"))
    harness.append(harness.source("0"), closed_decode("failed", "elsewhere", finish_reason="error"))
    found = ask(harness, late_request_ids=["elsewhere", "unknown"]).suspects
    assert {each.request_id: each.cleared for each in found} == {"answer": False, "failed": True}
    with pytest.raises(grpc.RpcError, match="at most"):
        ask(harness, late_request_ids=["x"] * (MAX_LATE_IDS + 1))


def test_what_engines_say_and_how_much_is_shown(harness: AdminHarness) -> None:
    """NaNs are the engine's word; the newest are shown, and that there are more; old ones are not looked at."""
    core = harness.source("0")
    now = time.time_ns()
    for number in range(3):
        told = event(
            "answer_suspected", f"r{number}", time_ns=now + number * MS, reason=NAN, nans_in_logits=2
        )
        harness.append(core, told, closed(f"r{number}", time_ns=now + number * MS, nans_in_logits=2))
    old = event("answer_suspected", "old", time_ns=now - 7200 * 1000 * MS, reason=NAN)
    harness.append(core, old)
    response = ask(harness, limit=2)
    assert [each.request_id for each in response.suspects] == ["r2", "r1"]
    assert response.truncated
    assert "2 of its logits were NaN" in response.suspects[0].evidence[0]
    assert [each.request_id for each in ask(harness, since={"seconds": 10800}).suspects][-1] == "old"


def test_loads_do_not_hide_what_an_engine_suspects(
    harness: AdminHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed loads are many and most spoil nothing; the older NaN is found behind them, and that there are more is said."""
    monkeypatch.setattr(calls, "MAX_SUSPECTS", 2)
    core, now = harness.source("0"), time.time_ns()
    told = event("answer_suspected", "nan", time_ns=now - 100 * MS, reason=NAN, nans_in_logits=2)
    harness.append(core, told, closed("nan", time_ns=now - 100 * MS, nans_in_logits=2))
    for number in range(4):
        harness.append(
            core,
            transfer_failure(
                f"r{number}",
                mode=common.FAILURE_MODE_TRANSFER,
                error_type=common.ERROR_TYPE_CORRUPT,
                time_ns=now + number * MS,
            ),
        )
    response = ask(harness)
    assert "nan" in [each.request_id for each in response.suspects]
    assert response.truncated


def test_what_was_not_searched_is_not_missing(harness: AdminHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget nobody knows whether the log has the reader."""
    decode, prefill = harness.source("0"), harness.source("1", labels={"role": "prefill"}, role="prefill")
    harness.append(decode, closed_decode("answer", "kept", time_ns=time.time_ns()))
    harness.append(prefill, late_read("kept"))
    monkeypatch.setattr(calls, "_MAX_BYTES", 0)
    response = ask(harness)
    assert [each.missing for each in response.suspects] == [calls._NOT_SEARCHED]
    assert not response.cleared_late_request_ids
    assert response.truncated


def weights_of(
    harness: AdminHarness, source: Source, weights: str, *, peer: str = "", address: str = ""
) -> None:
    """Let an engine say which weights it has loaded, and which peer it has shaken hands with."""
    facts = EngineFacts(
        model="tiny", kv_connector="NixlConnector", weights={"digest": weights}, side_channel=address
    )
    peers = [{"peer": {"address": peer}, "connected": True}] if peer else []
    harness.snapshot(source, Snapshot(engine=facts, peers=peers))


def test_answers_from_other_weights(harness: AdminHarness) -> None:
    """``diagnose``, ``get suspects`` and ``explain`` name the same answers: those since both processes run."""
    now = time.time_ns()
    decode = harness.source("0", start_time_unix_nano=now - 60_000 * MS)
    prefill = harness.source(
        "1", labels={"role": "prefill"}, role="prefill", start_time_unix_nano=now - 30_000 * MS
    )
    weights_of(harness, decode, "aaaa", peer=PEER)
    weights_of(harness, prefill, "bbbb", address=PEER)
    read = {"peer": {"address": PEER}}

    def ended(name: str, ago: int = 0, **fields: Any) -> Event:
        times = {"time_ns": now - ago * MS, "arrival_time_unix_nano": now - (ago + 10) * MS}
        return closed_decode(name, f"p-{name}", **{**times, **read, **fields})

    harness.append(
        decode,
        ended("wrong", 5),
        ended("also", 3),
        ended("failed", finish_reason="error"),
        ended("cached", external_cached_tokens=0),
        ended("elsewhere", peer={"address": "other:1"}),
        # The prefill process before this one may have had the same weights.
        ended("before", 45_000),
    )
    found = ask(harness).suspects
    assert [each.request_id for each in found] == ["also", "wrong"]
    assert [list(each.reasons) for each in found] == [[events.SUSPECT_REASON_OTHER_WEIGHTS]] * 2
    assert (found[0].peer_key.engine, found[0].peer.address) == ("1", PEER)
    assert found[0].evidence == [
        "it read KV blocks of engine 1, which had loaded other weights (aaaa here, bbbb there)"
    ]
    assert not ask(harness, selector={"labels": "role=prefill"}).suspects
    cause = harness.stub.Diagnose(admin.DiagnoseRequest()).causes[0]
    assert (cause.kind, cause.requests) == ("weights_differ", 2)
    assert any("requests also, wrong" in each.fact for each in cause.evidence)

    def said(name: str) -> list[str]:
        sentences = harness.stub.Explain(admin.GetTraceRequest(request_id=name)).sentences
        return [each for each in sentences if "suspect" in each]

    assert said("wrong") == [f"The answer to wrong is suspect: {found[0].evidence[0]}."]
    assert said("before") == said("failed") == []

    # A pod with the right weights takes its place: what was answered before stays wrong, and is over.
    harness.disconnect(prefill)
    again = harness.source(
        "1", labels={"role": "prefill"}, role="prefill", start_time_unix_nano=time.time_ns()
    )
    weights_of(harness, again, "aaaa", address=PEER)
    late = time.time_ns() + MS
    harness.append(decode, ended("right", time_ns=late + MS, arrival_time_unix_nano=late))
    assert [each.request_id for each in ask(harness).suspects] == ["also", "wrong"]
    harness.stub.Diagnose(admin.DiagnoseRequest())
    over = harness.stub.Diagnose(admin.DiagnoseRequest()).causes[0]
    assert (over.kind, over.requests, over.HasField("until")) == ("weights_differ", 2, True)
    assert (
        "engine 0 and engine 1 had loaded different weights: 2 answers may be wrong; ended" in over.sentence
    )


def test_a_late_write_has_no_known_victim(harness: AdminHarness) -> None:
    """The engine is known, the answer is not, and the row says so."""
    body = {"direction": common.DIRECTION_RECEIVE, "error_type": common.ERROR_TYPE_CORRUPT}
    harness.append(harness.source("0"), late_read("gone", **body))
    (suspect,) = ask(harness).suspects
    assert list(suspect.reasons) == [events.SUSPECT_REASON_LATE_WRITE]
    assert (suspect.key.engine, suspect.request_id) == ("0", "")
    assert suspect.missing


def test_holders(harness: AdminHarness) -> None:
    """Leases and held blocks by peer, with their share; of several processes the highest counts."""
    core, worker = harness.source("0"), harness.source("0", process="worker")
    now = time.time_ns()
    peer = {"address": PEER}
    harness.snapshot(
        core,
        Snapshot(
            time_unix_nano=now,
            engine=EngineFacts(num_gpu_blocks=200),
            leases=Leases(count=2, blocks=50, oldest_start_time_unix_nano=now - 1000),
            held=[
                HeldBlocks(
                    holder=BLOCK_HOLDER_ABORTED,
                    peer=peer,
                    requests=1,
                    blocks=3,
                    oldest_start_time_unix_nano=now,
                )
            ],
        ),
    )
    pinned = HeldBlocks(holder=BLOCK_HOLDER_PINNED, peer=peer, blocks=4)
    harness.snapshot(worker, Snapshot(time_unix_nano=now, held=[pinned]))
    response = harness.stub.ListHolders(admin.ListHoldersRequest())
    rows = [(each.holder, each.peer.address, each.requests, each.blocks) for each in response.holders]
    assert rows == [
        (BLOCK_HOLDER_LEASE, "", 2, 50),
        (BLOCK_HOLDER_PINNED, PEER, 0, 4),
        (BLOCK_HOLDER_ABORTED, PEER, 1, 3),
    ]
    assert [each.share for each in response.holders] == [0.25, 0.02, 0.015]
    assert response.holders[0].oldest.ToNanoseconds() == now - 1000
    assert not response.holders[1].HasField("oldest")
