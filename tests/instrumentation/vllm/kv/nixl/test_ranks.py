"""Two ranks of one engine with real workers, vLLM's aggregator and scheduler: a rank's failure frees no block in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.rules.deadlines import WaitKind

from tests.support.engine import schedulers
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import HOST, Engine, connect, instrumented_engines, prepare
from tests.support.kv.nixl_ranks import Aggregator, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]
    MakeScheduler = Callable[..., Any]


@pytest.fixture
def make_engine(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Build instrumented engines."""
    del recorder
    prepare(monkeypatch, tmp_path)
    with instrumented_engines(tmp_path, monkeypatch) as make:
        yield make


@from_version(0, 30, "tells a failed load by its blocks, which it does for each rank")
def test_one_fails_while_the_other_reads(
    make_engine: MakeEngine,
    make_scheduler: MakeScheduler,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request's blocks stay as long as the second rank may write to them; then it fails once, for one reason."""
    prefill = make_engine("kv_producer")
    ranks = [make_engine("kv_consumer"), make_engine("kv_consumer")]
    for rank in ranks:
        connect(prefill, rank)
    ranks[1].worker._penstock.rank = 1
    scheduler = make_scheduler("sync", own="fail")
    params = schedulers.REMOTE | {
        "remote_host": HOST,
        "remote_port": prefill.port,
        "remote_engine_id": prefill.id,
    }
    request = schedulers.request("r1", params=params)
    scheduler.add_request(request)
    schedulers.step(scheduler)
    (held,) = scheduler.kv_cache_manager.get_block_ids("r1")
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    prefill.lease("prefill-of-r1")
    aggregator = Aggregator(2)

    with monkeypatch.context() as slow:
        break_agent(slow, ranks[1], "check_xfer_state", lambda *_: "PROC")
        reading = ranks[1].read("r1", prefill, local=held)
        with monkeypatch.context() as broken:
            break_agent(broken, ranks[0], "make_prepped_xfer", refuse)
            failing = ranks[0].read("r1", prefill, local=held)
        assert failing[0].failed_recving == {"r1"}
        first = aggregator.together([failing, reading])
        assert not first.finished_recving
        assert not first.failed_recving
        update(scheduler, first)
        update(scheduler, aggregator.together([rank.step() for rank in ranks]))
        # The request may have ended for its client; what it held is still written to.
        assert scheduler.kv_cache_manager.get_block_ids("r1") == (held,)
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free

    last = aggregator.together([ranks[0].step(), ranks[1].received("r1")])
    assert last.finished_recving == last.failed_recving == {"r1"}
    assert bool((ranks[1].cache[held] == prefill.cache[4:7]).all())
    update(scheduler, last)
    assert "r1" not in scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free + len(held)
    (outcome,) = recorder.take("load_outcome", "r1")
    assert (outcome.outcome, outcome.mode) == (c.OUTCOME_FAILED, c.FAILURE_MODE_SETUP)
    (event,) = [event for event in recorder.events if event.WhichOneof("body") == "transfer_failure"]
    assert (event.rank, event.request_id) == (0, "r1")


@from_version(0, 30, "tells a failed load by its blocks, which it does for each rank")
def test_one_waits_for_its_handshake_while_the_other_reads(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that only one rank can apply at once keeps the load open for both."""
    prefill = make_engine("kv_producer")
    ranks = [make_engine("kv_consumer"), make_engine("kv_consumer")]
    connect(prefill, ranks[1])
    aggregator = Aggregator(2)
    with monkeypatch.context() as slow, ranks[0].handshakes_held():
        break_agent(slow, ranks[1], "check_xfer_state", lambda *_: "PROC")
        answers = [rank.read("r1", prefill) for rank in ranks]
        assert not aggregator.together(answers).finished_recving
        answers = [rank.cancel("r1", wait=WaitKind.TRANSFER) for rank in ranks]
        assert answers[0][0].failed_recving == {"r1"}
        told = aggregator.together(answers)
        assert not told.finished_recving
        assert not told.failed_recving
        assert told.kv_connector_worker_meta is not None
        assert told.kv_connector_worker_meta.pinned == ("r1",)
        modes = [each.mode for each in told.kv_connector_worker_meta.failures]
        # One was never asked; the other reads.
        assert modes == [c.FAILURE_MODE_COLLATERAL, c.FAILURE_MODE_TIMEOUT]
    told = aggregator.together([ranks[0].step(), ranks[1].received("r1")])
    assert told.finished_recving == told.failed_recving == {"r1"}
