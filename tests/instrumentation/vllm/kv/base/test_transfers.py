"""Connectors known only by their base interface: the events of their loads and sends, under a real scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.kv.base.worker_mixin import KvWorkerMixin

from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, PEER, REMOTE, request
from tests.support.engine.versions import from_version
from tests.support.kv import fake_mover
from tests.support.kv.fake_mover import OwnMetadata, mover, multi, run_step, worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

OK, ERROR = c.TRANSFER_RESULT_OK, c.TRANSFER_RESULT_ERROR
RECEIVE, SEND = c.DIRECTION_RECEIVE, c.DIRECTION_SEND
STORED = {"stored": 2 * BLOCK}
WAITS = {**STORED, "waits": True}


def told(recorder: Recorder) -> list[tuple[Any, ...]]:
    """Return of each transfer: request, connector, rank, direction, result and peer."""
    names = ("request_id", "connector", "rank", "direction", "result", "peer")
    return [tuple(each[name] for name in names) for each in recorder.transfers]


@pytest.fixture
def pair(make_scheduler: MakeScheduler) -> tuple[Any, Any]:
    """Give a scheduler and one worker's connector, both instrumented."""
    scheduler = make_scheduler(**mover())
    return scheduler, worker(scheduler.vllm_config)


def test_a_sync_load(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """It is one transfer of that request; the layers' waits count, and are unwrapped afterwards."""
    scheduler, connector = pair
    scheduler.add_request(request("r", params=STORED))
    run_step(scheduler, [connector], layers=("a", "b"))
    assert told(recorder) == [("r", "ToyMover", 0, RECEIVE, OK, "unknown")]
    (sample,) = recorder.transfers
    assert sample["duration_nano"] > 0
    assert (sample["bytes"], sample["channel"], sample["component"]) == (0, c.CHANNEL_KV, c.COMPONENT_WORKER)
    assert connector.script.called == ["start_load_kv", "wait_for_layer_load", "wait_for_layer_load"]
    assert "wait_for_layer_load" not in vars(connector)
    run_step(scheduler, [connector])
    assert len(recorder.transfers) == 1
    assert recorder.kinds() == ["request_closed"]


def test_a_load_that_the_request_waits_for(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """It lasts from the step that starts it to the step that reports it; the deferral has its start."""
    scheduler, connector = pair
    scheduler.add_request(request("r", params=WAITS))
    run_step(scheduler, [connector])
    assert recorder.transfers == []
    connector.script.received = {"r"}
    run_step(scheduler, [connector])
    assert told(recorder) == [("r", "ToyMover", 0, RECEIVE, OK, "unknown")]
    run_step(scheduler, [connector])
    (end,) = recorder.take("deferral_end", "r")
    sample = recorder.transfers[0]
    assert end.transfer_start_time_unix_nano == sample["end_time_unix_nano"] - sample["duration_nano"]


def test_the_peer_that_the_request_names(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """The peer of a load is the one that the request names."""
    scheduler, connector = pair
    scheduler.add_request(request("r", params={**STORED, **REMOTE}))
    run_step(scheduler, [connector])
    assert told(recorder) == [("r", "ToyMover", 0, RECEIVE, OK, PEER)]
    assert recorder.transfers[0]["peer_engine_id"] == REMOTE["remote_engine_id"]


@pytest.mark.parametrize("own", ["fail", "recompute"])
def test_blocks_that_a_sync_load_leaves_out(
    own: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The load of those blocks fails on that rank only; vLLM's own configuration decides and is reported."""
    scheduler = make_scheduler(own=own, **mover())
    ranks = [worker(scheduler.vllm_config, rank) for rank in (0, 1)]
    scheduler.add_request(request("good", params=STORED, first=1))
    scheduler.add_request(request("bad", params=STORED, first=2))
    break_second_block(scheduler, ranks[1], "bad")
    run_step(scheduler, ranks)
    assert sorted(told(recorder)) == [
        ("bad", "ToyMover", 0, RECEIVE, OK, "unknown"),
        ("bad", "ToyMover", 1, RECEIVE, ERROR, "unknown"),
        ("good", "ToyMover", 0, RECEIVE, OK, "unknown"),
        ("good", "ToyMover", 1, RECEIVE, OK, "unknown"),
    ]
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.blocks, failure.attempt) == (c.FAILURE_MODE_LOAD, 1, 1)
    assert failure.connector == "ToyMover"
    (outcome,) = recorder.take("load_outcome")
    expected = c.OUTCOME_FAILED if own == "fail" else c.OUTCOME_RECOMPUTED
    assert (outcome.outcome, outcome.mode, outcome.tokens_kept) == (expected, c.FAILURE_MODE_LOAD, BLOCK)


def break_second_block(scheduler: Any, connector: Any, request_id: str) -> None:
    """Let *connector* report the second block of a request that gets its blocks in this step."""
    before = connector.start_load_kv

    def start_load_kv(*args: Any, **kwargs: Any) -> None:
        before(*args, **kwargs)
        connector.script.broken = {scheduler.kv_cache_manager.get_block_ids(request_id)[0][1]}

    connector.start_load_kv = start_load_kv


def test_a_policy_recomputes_a_sync_load_that_failed(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """A policy decides for every connector; the recomputation is no second attempt."""
    # One that only loads: what others may have passed on is never computed again.
    scheduler = make_scheduler(own="fail", **mover(kv_role="kv_consumer"))
    connector = worker(scheduler.vllm_config)
    runtime.policy.swap(policy("recompute"), 1.0)
    scheduler.add_request(request("r", params=STORED))
    break_second_block(scheduler, connector, "r")
    run_step(scheduler, [connector])
    del connector.start_load_kv
    for _ in range(4):
        run_step(scheduler, [connector])
    (outcome,) = recorder.take("load_outcome")
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert [closed.finish_reason for closed in recorder.take("request_closed")] == ["length"]
    assert len(recorder.transfers) == 1


@from_version(0, 30, "tells a failed load by its blocks alone")
def test_a_load_that_fails_as_a_whole(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A connector that reports the request, not its blocks."""
    scheduler = make_scheduler(own="fail", **mover())
    connector = worker(scheduler.vllm_config)
    scheduler.add_request(request("r", params=WAITS))
    run_step(scheduler, [connector])
    connector.script.received = connector.script.failed = {"r"}
    run_step(scheduler, [connector])
    assert told(recorder) == [("r", "ToyMover", 0, RECEIVE, ERROR, "unknown")]
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.mode, failure.HasField("blocks")) == (c.FAILURE_MODE_LOAD, False)
    (outcome,) = recorder.take("load_outcome", "r")
    assert outcome.outcome == c.OUTCOME_FAILED


def test_blocks_that_fail_before_their_load_has_ended(
    make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The failure is emitted at once; when the load ends its transfer is a failed one, and the recompute is reported."""
    scheduler = make_scheduler(own="recompute", **mover())
    connector = worker(scheduler.vllm_config)
    scheduler.add_request(request("r", params=WAITS))
    run_step(scheduler, [connector])
    connector.script.broken = {scheduler.kv_cache_manager.get_block_ids("r")[0][0]}
    run_step(scheduler, [connector])
    assert recorder.transfers == []
    assert [failure.blocks for failure in recorder.take("transfer_failure", "r")] == [1]
    assert not recorder.take("load_outcome", "r")
    connector.script.received = {"r"}
    run_step(scheduler, [connector])
    assert [outcome.mode for outcome in recorder.take("load_outcome", "r")] == [c.FAILURE_MODE_LOAD]
    assert told(recorder) == [("r", "ToyMover", 0, RECEIVE, ERROR, "unknown")]
    assert len(recorder.take("transfer_failure")) == 1


def test_blocks_of_a_finished_request(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """The failure is emitted without a request."""
    scheduler, connector = pair
    scheduler.add_request(request("r"))
    connector.script.broken = {99}
    run_step(scheduler, [connector])
    (failure,) = recorder.take("transfer_failure")
    assert (failure.blocks, failure.connector) == (1, "ToyMover")
    assert recorder.events[0].request_id == ""


def test_sends(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """A send of a finished request is emitted at its end, without a duration."""
    scheduler, connector = pair
    scheduler.add_request(request("r", max_tokens=1, params={"keeps": True}))
    run_step(scheduler, [connector])
    connector.script.sent = {"r"}
    run_step(scheduler, [connector])
    assert told(recorder) == [("r", "ToyMover", 0, SEND, OK, "unknown")]
    assert recorder.transfers[0]["duration_nano"] == 0
    assert [lease.blocks for lease in recorder.take("lease_closed", "r")] == [3]


@pytest.mark.parametrize("where", ["start_load_kv", "wait_for_layer_load"])
def test_an_exception_leaves_the_connector(where: str, pair: tuple[Any, Any], recorder: Recorder) -> None:
    """It is emitted at once for the requests of the step, and raised unchanged."""
    scheduler, connector = pair
    error = connector.script.raises[where] = FileNotFoundError("no such file: layer.safetensors")
    scheduler.add_request(request("r", params=STORED))
    with pytest.raises(FileNotFoundError) as raised:
        run_step(scheduler, [connector])
    assert raised.value is error
    assert told(recorder) == [("r", "ToyMover", 0, RECEIVE, ERROR, "unknown")]
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_EXCEPTION, c.ERROR_TYPE_EVICTED)
    assert (failure.error_class, failure.upstream_type) == ("FileNotFoundError", "")


def test_the_connectors_own_metadata_arrives(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """It travels inside Penstock's report, is aggregated by the connector, and arrives unwrapped."""
    scheduler = make_scheduler(**mover())
    ranks = [worker(scheduler.vllm_config, rank) for rank in (0, 1)]
    for rank, connector in enumerate(ranks):
        connector.script.own = OwnMetadata([rank])
    scheduler.add_request(request("r", params=STORED))
    run_step(scheduler, ranks)
    assert scheduler.connector.got == [OwnMetadata([0, 1])]
    assert len(recorder.transfers) == 2


def test_the_children_of_a_multi_connector(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Each child reports under its own name, loads only the chosen one; their own metadata arrives."""
    scheduler = make_scheduler(**multi(mover("OtherMover"), mover()))
    connector = worker(scheduler.vllm_config)
    first, second = child_connectors(connector)
    second.script.own = OwnMetadata([2])
    scheduler.add_request(request("r", max_tokens=1, params={**STORED, "keeps": True}))
    run_step(scheduler, [connector])
    assert told(recorder) == [("r", "OtherMover", 0, RECEIVE, OK, "unknown")]
    first.script.sent = {"r"}
    run_step(scheduler, [connector])
    second.script.sent = {"r"}
    run_step(scheduler, [connector])
    assert told(recorder)[1:] == [
        ("r", "OtherMover", 0, SEND, OK, "unknown"),
        ("r", "ToyMover", 0, SEND, OK, "unknown"),
    ]
    assert [child.got[-1] for child in child_connectors(scheduler.connector)] == [None, OwnMetadata([2])]
    assert not isinstance(connector, KvWorkerMixin)


def test_two_tiers_of_one_class(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Each has a number, in the order of the configuration; to vLLM both keep the name of their class."""
    scheduler = make_scheduler(**multi(mover(), mover("OtherMover"), mover()))
    connector = worker(scheduler.vllm_config)
    first, other, second = child_connectors(connector)
    assert {type(each).__name__ for each in (first, second)} == {"ToyMover"}
    scheduler.add_request(request("r", max_tokens=1, params={**STORED, "keeps": True}))
    run_step(scheduler, [connector])
    assert told(recorder) == [("r", "ToyMover.0", 0, RECEIVE, OK, "unknown")]
    for each in (second, other):
        each.script.sent = {"r"}
        run_step(scheduler, [connector])
    assert [row[1] for row in told(recorder)[1:]] == ["ToyMover.1", "OtherMover"]


def test_what_vllm_asks_of_a_connector_stays(pair: tuple[Any, Any]) -> None:
    """Name, module, ancestry and class methods are those of the class that vLLM built."""
    for each in (pair[0].connector, pair[1]):
        kind = type(each)
        assert (kind.__name__, kind.__qualname__, kind.__module__) == (
            "ToyMover",
            "ToyMover",
            fake_mover.MODULE,
        )
        assert isinstance(each, fake_mover.ToyMover)
        assert kind is not fake_mover.ToyMover
        assert kind.build_kv_connector_stats() is fake_mover.ToyMover.build_kv_connector_stats()


def test_a_load_that_ends_while_paused_is_forgotten(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """An exception of the connector, days later, says nothing about it."""
    scheduler, connector = pair
    scheduler.add_request(request("r", params=WAITS))
    run_step(scheduler, [connector])
    assert connector._penstock_observer._in_flight
    runtime.pause("ingest", paused=True)
    try:
        connector.script.received = {"r"}
        run_step(scheduler, [connector])
    finally:
        runtime.pause("ingest", paused=False)
    assert not connector._penstock_observer._in_flight
    assert recorder.transfers == []


def test_paused(pair: tuple[Any, Any], recorder: Recorder) -> None:
    """Nothing is emitted or attached while paused, and the connector's own metadata passes."""
    scheduler, connector = pair
    runtime.pause("ingest", paused=True)
    try:
        connector.script.own = OwnMetadata([1])
        scheduler.add_request(request("r", params=STORED))
        run_step(scheduler, [connector])
        assert (recorder.transfers, recorder.events) == ([], [])
        assert scheduler.connector.got == [OwnMetadata([1])]
    finally:
        runtime.pause("ingest", paused=False)
