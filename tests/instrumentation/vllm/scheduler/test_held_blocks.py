"""The gauges of held KV blocks, of vLLM's own schedulers: with its NIXL connector, and with one known by the base interface only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.compat import child_connectors
from penstock.instrumentation.vllm.messages.worker_report import WorkerReport

from tests.support.engine.schedulers import BLOCK, LOCAL, PEER, REMOTE, request, step
from tests.support.engine.versions import PLACE
from tests.support.kv.fake_mover import mover, multi

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
WAITS = {"stored": 2 * BLOCK, "waits": True}


def held(recorder: Recorder) -> list[tuple[int, str, int, int]]:
    """Return holder, peer, requests and blocks of each row; all have begun."""
    rows = recorder.snapshot().held
    assert all(row.oldest_start_time_unix_nano for row in rows)
    return [(row.holder, row.peer.address, row.requests, row.blocks) for row in rows]


def add(scheduler: Any, request_id: str, **arguments: Any) -> Any:
    """Add a request and do a step."""
    added = request(request_id, **arguments)
    scheduler.add_request(added)
    step(scheduler)
    return added


def abort(scheduler: Any, request_id: str) -> None:
    """Let the client go away."""
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


@BOTH
def test_load(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A load holds the blocks that it fills, by its peer, until it has come."""
    scheduler = make_scheduler(kind)
    add(scheduler, "r1", params=REMOTE)
    add(scheduler, "r2", params=REMOTE, first=2)
    step(scheduler)
    assert held(recorder) == [(c.BLOCK_HOLDER_LOAD, PEER, 2, 6)]
    step(scheduler, finished_recving={"r1"})
    assert held(recorder) == [(c.BLOCK_HOLDER_LOAD, PEER, 1, 3)]
    step(scheduler, finished_recving={"r2"})
    assert not held(recorder)


@BOTH
def test_the_local_prefix_is_not_held(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Blocks that were there before are no part of the load."""
    scheduler = make_scheduler(kind)
    before = add(scheduler, "before", tokens=2 * BLOCK, max_tokens=1)
    while before.request_id in scheduler.requests:
        step(scheduler)
    add(scheduler, "r", tokens=4 * BLOCK, params=REMOTE)
    assert held(recorder) == [(c.BLOCK_HOLDER_LOAD, PEER, 1, 2)]


@BOTH
def test_failed_load(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A load that has failed holds nothing, whether its request recomputes or fails."""
    for own in ("recompute", "fail"):
        scheduler = make_scheduler(kind, own=own)
        add(scheduler, "r", params=REMOTE)
        blocks = set(scheduler.kv_cache_manager.get_block_ids("r")[0])
        step(scheduler, finished_recving={"r"}, failed_recving={"r"}, invalid_block_ids=blocks)
        assert not held(recorder)
        while "r" in scheduler.requests:
            step(scheduler)
        assert not held(recorder)


@BOTH
def test_aborted_load(kind: str, make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The client is gone, the load is not: its blocks are held until it has ended."""
    scheduler = make_scheduler(kind)
    add(scheduler, "r", params=REMOTE)
    abort(scheduler, "r")
    assert held(recorder) == [(c.BLOCK_HOLDER_ABORTED, PEER, 1, 3)]
    step(scheduler, finished_recving={"r"})
    assert "r" not in scheduler.requests
    assert not held(recorder)


def test_pinned_load(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A load that a worker reports as stuck is pinned, also when its request has ended."""
    scheduler = make_scheduler()
    add(scheduler, "r", params=REMOTE)
    step(scheduler, kv_connector_worker_meta=WorkerReport(stuck=("r", "another")))
    assert held(recorder) == [(c.BLOCK_HOLDER_PINNED, PEER, 1, 3)]
    abort(scheduler, "r")
    assert held(recorder) == [(c.BLOCK_HOLDER_PINNED, PEER, 1, 3)]
    step(scheduler, finished_recving={"r"})
    assert not held(recorder)


def test_a_lease_is_no_save(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Blocks that wait for a reader are a lease, and nothing else."""
    scheduler = make_scheduler(role="kv_producer")
    leased = add(scheduler, "r", params=LOCAL, max_tokens=1)
    while not leased.is_finished():
        step(scheduler)
    assert not held(recorder)
    assert (recorder.snapshot().leases.count, recorder.snapshot().leases.blocks) == (1, 3)


@pytest.mark.parametrize("config", [mover(), multi(mover(), mover("OtherMover"))], ids=["single", "multi"])
def test_base_interface(config: dict[str, Any], make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Any connector's loads hold blocks; where it names the place, that is the peer."""
    scheduler = make_scheduler(**config)
    child = (child_connectors(scheduler.connector) or [scheduler.connector])[0]
    add(scheduler, "r1", params=WAITS)
    child._cache_hit_source = "host"
    add(scheduler, "r2", params=WAITS, first=2)
    both = [(c.BLOCK_HOLDER_LOAD, "unknown", 1, 2), (c.BLOCK_HOLDER_LOAD, PLACE, 1, 2)]
    assert held(recorder) == (both if PLACE == "host" else [(c.BLOCK_HOLDER_LOAD, "unknown", 2, 4)])
    abort(scheduler, "r1")
    step(scheduler, finished_recving={"r2"})
    assert held(recorder) == [(c.BLOCK_HOLDER_ABORTED, "unknown", 1, 2)]


def test_a_load_that_the_step_waits_for(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Its request computes with its blocks in the same step, so no holder has them."""
    scheduler = make_scheduler(**mover())
    add(scheduler, "r", params={"stored": 2 * BLOCK})
    assert not held(recorder)


def test_save(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A save goes on behind its request: it holds the blocks, and is no lease."""
    scheduler = make_scheduler(**mover())
    saved = add(scheduler, "r", params={"keeps": True}, max_tokens=1)
    while not saved.is_finished():
        step(scheduler)
    assert held(recorder) == [(c.BLOCK_HOLDER_SAVE, "", 1, 3)]
    assert recorder.snapshot().leases.count == 0
    step(scheduler, finished_sending={"r"})
    assert not held(recorder)
    assert len(recorder.take("lease_closed", "r")) == 1


def test_null_blocks_are_not_held(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A place that a sliding window has left behind keeps no block."""
    scheduler = make_scheduler(**mover())
    saved = request("r", tokens=2 * BLOCK + 1, params={"keeps": True})
    scheduler.add_request(saved)
    step(scheduler)
    cache = scheduler.kv_cache_manager
    (manager,) = cache.coordinator.single_type_managers
    manager.req_to_blocks["r"][0] = cache.block_pool.null_block
    while not saved.is_finished():
        step(scheduler)
    assert held(recorder) == [(c.BLOCK_HOLDER_SAVE, "", 1, 2)]


def test_paused(make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause begins no holding, and leaves none open."""
    scheduler = make_scheduler()
    add(scheduler, "r1", params=REMOTE)
    monkeypatch.setattr(runtime, "active", False)
    add(scheduler, "r2", params=REMOTE, first=2)
    step(scheduler, finished_recving={"r1"})
    monkeypatch.setattr(runtime, "active", True)
    assert not held(recorder)
