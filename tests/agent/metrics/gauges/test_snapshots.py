"""Gauges: how the snapshots of an engine's sources become one value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.metrics.catalogue import from_snapshots
from penstock.agent.metrics.gauges.engine import MAX, GaugeSet, add
from penstock.agent.metrics.gauges.snapshots import add_snapshots
from penstock.agent.model import EngineKey
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1.snapshot_pb2 import QUEUE_REASON_CAPACITY, Snapshot

from tests.support.agent.batches import PEER, TIME
from tests.support.agent.metric_logs import SECOND, live, source

if TYPE_CHECKING:
    from penstock.agent.metrics.catalogue.metric import Metric
    from penstock.agent.sources.registry import LiveSource

KV, EC = common.CHANNEL_KV, common.CHANNEL_EC
CORE = source()
WORKERS = [source(process="worker", rank=rank, epoch=rank + 2) for rank in range(2)]
SECONDS = TIME / SECOND


def gauges(
    *sources: LiveSource, wanted: Any = None, cap: int = 1000
) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the gauges of engine 0 by name and own labels."""
    sheet = GaugeSet(cap)
    add_snapshots(sheet, sources, wanted)
    return {
        family.metric.name: {sample.labels[2:]: sample.value for sample in family.samples}
        for family in sheet.families()
    }


def peer(**status: Any) -> dict[str, Any]:
    """Return a peer's status."""
    return {"peer": {"address": PEER}, **status}


def test_in_flight_is_the_sum_of_the_ranks_and_the_oldest_their_minimum() -> None:
    """Each rank moves its own share; the request waits for the oldest."""
    shown = gauges(
        *(
            live(worker, Snapshot(in_flight=[
                {"channel": KV, "peer": {"address": PEER}, "count": 2, "oldest_start_time_unix_nano": TIME - rank * SECOND},
                {"channel": EC, "count": 0, "oldest_start_time_unix_nano": TIME},
            ]))
            for rank, worker in enumerate(WORKERS)
        )
    )  # fmt: skip
    assert shown["penstock_transfers_in_flight"] == {("kv", PEER): 4, ("ec", "unknown"): 0}
    assert shown["penstock_oldest_transfer_start_timestamp_seconds"] == {("kv", PEER): SECONDS - 1}


def test_deferred_requests() -> None:
    """Count and oldest by what is waited for, and from whom."""
    waiting = {"reason": common.DEFERRAL_REASON_REMOTE_KV, "peer": {"address": PEER}}
    shown = gauges(
        live(CORE, Snapshot(deferred=[{**waiting, "count": 3, "oldest_start_time_unix_nano": TIME}]))
    )
    assert shown["penstock_deferred_requests"] == {("remote_kv", PEER): 3}
    assert shown["penstock_oldest_deferral_start_timestamp_seconds"] == {("remote_kv", PEER): SECONDS}


def test_leases_are_the_highest_of_the_ranks() -> None:
    """All ranks hold the same requests, each its own share of their blocks."""
    shown = gauges(
        live(WORKERS[0], Snapshot(leases={"count": 3, "blocks": 30})),
        live(WORKERS[1], Snapshot(leases={"count": 2, "blocks": 40})),
    )
    assert shown["penstock_send_leases"] == {(): 3}
    assert shown["penstock_send_lease_blocks"] == {(): 40}


def test_held_blocks() -> None:
    """By holder and peer, the highest of the processes; the oldest their minimum; leases are a holder, too."""
    shown = gauges(
        live(CORE, Snapshot(
            engine={"num_gpu_blocks": 500},
            leases={"blocks": 40, "oldest_start_time_unix_nano": TIME},
            held=[
                {"holder": 2, "peer": {"address": PEER}, "blocks": 19, "oldest_start_time_unix_nano": TIME},
                {"holder": 3, "peer": {"address": PEER}, "blocks": 5, "oldest_start_time_unix_nano": TIME},
                {"holder": 4, "blocks": 6, "oldest_start_time_unix_nano": TIME},
            ],
        )),
        *(
            live(worker, Snapshot(held=[
                {"holder": 2, "peer": {"address": PEER}, "blocks": 20 + rank, "oldest_start_time_unix_nano": TIME - rank * SECOND},
                {"holder": 1, "peer": {"address": PEER}, "blocks": 7},
            ]))
            for rank, worker in enumerate(WORKERS)
        ),
    )  # fmt: skip
    assert shown["penstock_held_blocks"] == {
        ("pinned", PEER): 21,
        ("load", PEER): 7,
        ("aborted", PEER): 5,
        ("save", "unknown"): 6,
        ("lease", "unknown"): 40,
    }
    assert shown["penstock_oldest_held_blocks_start_timestamp_seconds"] == {
        ("pinned", PEER): SECONDS - 1,
        ("aborted", PEER): SECONDS,
        ("save", "unknown"): SECONDS,
        ("lease", "unknown"): SECONDS,
    }
    assert shown["penstock_kv_cache_blocks"] == {(): 500}


def test_peers() -> None:
    """Union over the ranks."""
    shown = gauges(
        live(WORKERS[0], Snapshot(peers=[
            peer(clock_offset_nano=-5 * SECOND, upstream_invalid=True, quarantine=events.QUARANTINE_STATE_OPEN),
        ])),
        live(WORKERS[1], Snapshot(peers=[
            {"peer": {"address": PEER, "engine_id": "e-1"}, "upstream_invalid": True},
            {"peer": {"address": "b:1", "engine_id": "e-2"}, "upstream_invalid": True},
        ])),
    )  # fmt: skip
    assert shown["penstock_peer_info"] == {(PEER, "e-1"): 1, ("b:1", "e-2"): 1}
    assert shown["penstock_peer_clock_offset_seconds"] == {(PEER,): -5}
    assert shown["penstock_upstream_invalid_peers"] == {(): 2}
    assert shown["penstock_peer_quarantine_state"] == {
        (PEER, "closed"): 0,
        (PEER, "open"): 1,
        (PEER, "half_open"): 0,
    }


def test_policy() -> None:
    """What holds, what is done about failures, since when and until when."""
    status = {
        "hash": "abc",
        "kv_action": "recompute",
        "changed_time_unix_nano": TIME,
        "expires_time_unix_nano": TIME + SECOND,
    }
    shown = gauges(live(CORE, Snapshot(policy=status)), wanted={EngineKey("", "0"): "abc"}.__getitem__)
    assert shown["penstock_policy_info"] == {("abc",): 1}
    assert shown["penstock_policy_action"] == {("kv", "recompute"): 1, ("kv", "fail"): 0, ("kv", "auto"): 0}
    assert shown["penstock_policy_in_sync"] == {(): 1}
    assert shown["penstock_policy_last_change_timestamp_seconds"] == {(): SECONDS}
    assert shown["penstock_policy_expiry_timestamp_seconds"] == {(): SECONDS + 1}


def test_no_policy_is_none_and_in_sync_with_nothing_wanted() -> None:
    """With no policy at all vLLM's own configuration holds, and says so."""
    shown = gauges(live(CORE, Snapshot(policy={})), wanted=lambda _: "")
    assert shown["penstock_policy_info"] == {("none",): 1}
    assert shown["penstock_policy_in_sync"] == {(): 1}
    assert not {"penstock_policy_action", "penstock_policy_expiry_timestamp_seconds"} & set(shown)
    assert gauges(live(CORE, Snapshot(policy={})), wanted=lambda _: "x")["penstock_policy_in_sync"] == {(): 0}


def test_a_policy_that_a_pause_holds_back_is_not_in_force() -> None:
    """Also by the word of an engine that goes on naming it."""
    status = {"hash": "abc", "kv_action": "fail", "expires_time_unix_nano": TIME + SECOND}
    shown = gauges(live(CORE, Snapshot(paused=True, policy=status)), wanted=lambda _: "abc")
    assert shown["penstock_policy_info"] == {("none",): 1}
    assert shown["penstock_policy_in_sync"] == {(): 0}
    assert "penstock_policy_expiry_timestamp_seconds" not in shown
    nothing = gauges(live(CORE, Snapshot(paused=True, policy={})), wanted=lambda _: "")
    assert nothing["penstock_policy_in_sync"] == {(): 1}


def test_two_engines_of_one_name_are_in_sync_if_both_are() -> None:
    """And each shows what it does."""
    other = live(replace(CORE, epoch=CORE.epoch + 1), Snapshot(policy={"kv_action": "fail"}))
    one = live(CORE, Snapshot(policy={"hash": "abc", "kv_action": "recompute"}))
    for sources in ((one, other), (other, one)):
        shown = gauges(*sources, wanted=lambda _: "abc")
        assert shown["penstock_policy_in_sync"] == {(): 0}
        assert shown["penstock_policy_action"] == {
            ("kv", "recompute"): 1, ("kv", "fail"): 1, ("kv", "auto"): 0,
        }  # fmt: skip


def test_whether_a_policy_is_in_sync_is_absent_until_the_engine_has_subscribed() -> None:
    """Neither yes nor no: the agent does not know yet what it is to have."""
    shown = gauges(live(CORE, Snapshot(policy={"hash": "abc"})), wanted=lambda _: None)
    assert shown["penstock_policy_info"] == {("abc",): 1}
    assert "penstock_policy_in_sync" not in shown
    assert "penstock_policy_in_sync" not in gauges(live(CORE, Snapshot(policy={})))


def test_engines_of_one_server_are_data_parallel() -> None:
    """Also where vLLM tells each of them that it is alone."""
    alone = Snapshot(engine={"data_parallel_size": 1})
    second = replace(CORE, key=EngineKey(CORE.key.server, "1"), epoch=CORE.epoch + 1)
    sheet = GaugeSet()
    add_snapshots(sheet, [live(CORE, alone), live(second, alone)], None)
    (info,) = [family for family in sheet.families() if family.metric is from_snapshots.ENGINE_INFO]
    place = 2 + from_snapshots.ENGINE_INFO.labels.index("data_parallel_size")
    assert [sample.labels[place] for sample in info.samples] == ["2", "2"]


def test_engine_facts() -> None:
    """What EngineCore says, and the source's word where it does not."""
    shown = gauges(
        live(
            CORE,
            Snapshot(
                paused=True,
                engine={
                    "model": "llama",
                    "role": common.ROLE_DECODE,
                    "kv_connector": "NixlConnector",
                    "kv_engine_id": "uuid",
                    "tensor_parallel_size": 2,
                    "data_parallel_size": 1,
                    "start_time_unix_nano": TIME,
                    "compatibility_hash": "h",
                    "compatibility_factors": {"vllm_version": "0.32.0"},
                },
            ),
        )
    )
    (labels,) = shown["penstock_engine_info"]
    assert dict(zip(from_snapshots.ENGINE_INFO.labels, labels, strict=True)) == {
        "model": "llama",
        "role": "decode",
        "role_guessed": "false",
        "vllm_version": "",
        "kv_connector": "NixlConnector",
        "kv_role": "",
        "kv_engine_id": "uuid",
        "kv_load_failure_policy": "",
        "ec_connector": "",
        "ec_role": "",
        "scheduler_class": "",
        "side_channel": "",
        "tensor_parallel_size": "2",
        "data_parallel_size": "1",
    }
    assert shown["penstock_engine_compatibility_info"] == {
        ("h", "", ""): 1,
        ("h", "vllm_version", "0.32.0"): 1,
    }
    assert shown["penstock_engine_start_timestamp_seconds"] == {(): SECONDS}
    assert shown["penstock_engine_paused"] == {(): 1}


@pytest.mark.parametrize(
    ("processes", "value"),
    [
        ([Snapshot(paused=True), Snapshot(paused=True)], 1),
        ([Snapshot(paused=True), Snapshot()], 0),
        ([Snapshot(paused=True), None], 0),
        ([Snapshot(), Snapshot()], 0),
    ],
    ids=["all", "one is active", "one has not said", "none"],
)
def test_an_engine_is_paused_once_each_of_its_processes_is(
    processes: list[Snapshot | None], value: int
) -> None:
    """A worker that has not heard of the pause still reports; a process that is away says nothing."""
    away = live(source(process="worker", rank=9, epoch=99), None, connected=False)
    lives = [live(each, said) for each, said in zip(WORKERS, processes, strict=True)]
    assert gauges(*lives, away)["penstock_engine_paused"] == {(): value}


_OUT = Snapshot(out_of_rotation_until_unix_nano=1)


@pytest.mark.parametrize(
    ("processes", "value"),
    [([_OUT, _OUT], 1), ([_OUT, Snapshot()], 0), ([_OUT, None], 0), ([Snapshot()], 0)],
    ids=["all", "one is in", "one has not said", "in"],
)
def test_a_server_is_out_of_rotation_once_each_of_its_front_ends_is(
    processes: list[Snapshot | None], value: int
) -> None:
    """An engine says nothing about it."""
    front_ends = [
        live(source(engine="", process="api", epoch=90 + number), said)
        for number, said in enumerate(processes)
    ]
    shown = gauges(*front_ends, live(WORKERS[0], _OUT))
    assert shown["penstock_server_out_of_rotation"] == {(): value}


def test_hooks() -> None:
    """A hook that is in on one rank and out on another shows both, the second with its reason."""
    shown = gauges(
        live(WORKERS[0], Snapshot(hooks=[{"name": "nixl", "component": common.COMPONENT_WORKER, "installed": True}])),
        live(WORKERS[1], Snapshot(hooks=[{"name": "nixl", "component": common.COMPONENT_WORKER, "reason": "no nixl"}])),
    )  # fmt: skip
    assert shown["penstock_hook_installed"] == {
        ("worker", "nixl", "", ""): 1,
        ("worker", "nixl", "", "no nixl"): 0,
    }


def test_what_a_hook_does_without() -> None:
    """A row for each missing part beside that of the hook; none that could be taken for the hook, and not more than 32."""
    parts = [
        {"name": "lease_expiry", "lost": "why a lease ended", "reason": "no such method"},
        {"reason": "no name"},
    ]
    many = [{"name": f"part {number:02}"} for number in range(40)]
    said = [
        {"name": "nixl", "component": common.COMPONENT_WORKER, "installed": True, "missing_parts": parts},
        {"name": "ec", "component": common.COMPONENT_WORKER, "reason": "too new", "missing_parts": parts},
        {"name": "eplb", "component": common.COMPONENT_WORKER, "installed": True, "missing_parts": many},
    ]
    shown = gauges(live(WORKERS[0], Snapshot(hooks=said)))["penstock_hook_installed"]
    assert {labels: value for labels, value in shown.items() if "eplb" not in labels} == {
        ("worker", "nixl", "", ""): 1,
        ("worker", "nixl", "lease_expiry", "no such method"): 0,
        ("worker", "ec", "", "too new"): 0,
    }
    assert len([labels for labels in shown if "eplb" in labels]) == 1 + 32


def test_a_front_end_is_no_engine() -> None:
    """It has hooks, but is neither paused nor has peers."""
    shown = gauges(
        live(source(engine="", process="api"), Snapshot(hooks=[{"name": "trace", "component": common.COMPONENT_FRONTEND, "installed": True}]))
    )  # fmt: skip
    assert shown == {
        "penstock_hook_installed": {("frontend", "trace", "", ""): 1},
        "penstock_server_out_of_rotation": {(): 0},
    }


@pytest.mark.parametrize(
    "gone",
    [live(CORE, Snapshot(leases={"count": 1}), connected=False), live(CORE, None)],
    ids=["disconnected", "no snapshot yet"],
)
def test_no_gauge_without_a_live_snapshot(gone: LiveSource) -> None:
    """A gauge is of now or it is absent."""
    assert gauges(gone) == {}


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        (from_snapshots.TRANSFERS_IN_FLIGHT, {("kv", "a"): 1.0, ("kv", "b"): 1.0, ("kv", "__other__"): 2.0}),
        (from_snapshots.OLDEST_TRANSFER, {("kv", "a"): 1.0, ("kv", "b"): 1.0, ("kv", "__other__"): 1.0}),
    ],
)
def test_beyond_the_cap_values_are_merged(metric: Metric, shown: dict[tuple[str, ...], float]) -> None:
    """Label sets beyond the cap fold into __other__ and are counted."""
    sheet = GaugeSet(cap=2)
    for name in "dbca":
        sheet.merge(
            add if metric is from_snapshots.TRANSFERS_IN_FLIGHT else MAX,
            metric,
            EngineKey("", "0"),
            1.0,
            "kv",
            name,
        )
    (family,) = sheet.families()
    assert {sample.labels[2:]: sample.value for sample in family.samples} == shown
    assert sheet.hidden == {metric: 2}


def test_beyond_the_cap_what_cannot_be_merged_is_left_out() -> None:
    """A clock offset of many peers at once would be no clock offset."""
    status = [{"peer": {"address": name}, "clock_offset_nano": 1} for name in "cba"]
    sheet = GaugeSet(cap=2)
    add_snapshots(sheet, [live(CORE, Snapshot(peers=status))], None)
    shown = {
        family.metric: [sample.labels[2] for sample in family.samples]
        for family in sheet.families()
        if family.metric.labels
    }
    assert shown == {from_snapshots.PEER_CLOCK_OFFSET: ["a", "b"]}
    assert sheet.hidden == {from_snapshots.PEER_CLOCK_OFFSET: 1}


def test_a_schedulers_queue() -> None:
    """By reason; a reason of tomorrow is unknown, what does not wait has no start, and without a queue nothing is said."""
    queue = {
        "running": 3,
        "free_blocks": 5,
        "total_blocks": 127,
        "last_step_time_unix_nano": TIME,
        "waiting": [
            {"reason": QUEUE_REASON_CAPACITY, "count": 2, "oldest_start_time_unix_nano": TIME - SECOND},
            {"reason": 99, "count": 1},
            {"reason": QUEUE_REASON_CAPACITY, "count": 1, "oldest_start_time_unix_nano": TIME - 2 * SECOND},
        ],
    }
    shown = gauges(live(CORE, Snapshot(queue=queue)), live(WORKERS[0], Snapshot()))
    assert shown["penstock_running_requests"] == {(): 3}
    assert shown["penstock_waiting_requests"] == {("capacity",): 3, ("unknown",): 1}
    assert shown["penstock_oldest_waiting_request_start_timestamp_seconds"] == {("capacity",): SECONDS - 2}
    assert shown["penstock_kv_cache_free_blocks"] == {(): 5}
    assert shown["penstock_last_step_timestamp_seconds"] == {(): SECONDS}
    assert not {name for name in gauges(live(CORE, Snapshot())) if "requests" in name or "step" in name}
