"""UMBPStoreConnector, which vLLM 0.33 has outside its factory, over a pool of files: the events of its loads."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime

from tests.support.agent.agent import wait_until
from tests.support.engine import schedulers
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, BLOCKS, request
from tests.support.engine.versions import from_version
from tests.support.kv.fake_mover import run_step, worker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.v1.kv_cache_interface import KVCacheTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

pytestmark = from_version(0, 33, "has no UMBPStoreConnector")

NAME = "UMBPStoreConnector"
SHAPE = (BLOCKS, 2, BLOCK, 64)
PAGE = 2 * BLOCK * 64 * 4


class Pair:
    """Scheduler and worker on one pool, with one layer's KV cache."""

    def __init__(self, make: MakeScheduler, pool: Path, **options: Any) -> None:
        from tests.support.kv.file_umbp import transfer

        self.pool = pool
        self.scheduler = make(**transfer(pool, **options))
        self.worker = worker(self.scheduler.vllm_config)
        self.cache = torch.rand(SHAPE)
        self.worker.register_kv_caches({"layer": self.cache})
        self.counts: dict[str, Any] = {}

    def step(self) -> Any:
        """Do a step, and keep the connector's own statistics."""
        outputs = run_step(self.scheduler, [self.worker])
        counted = self.worker.get_kv_connector_stats()
        for name, count in (counted.reduce() if counted else {}).items():
            self.counts[name] = self.counts.get(name, 0) + count
        return outputs

    def serve(self, request_id: str, steps: int = 6) -> None:
        """Run a request to its end, which a look-up in another thread may hold up; then empty the prefix cache."""
        self.scheduler.add_request(request(request_id))
        for _ in range(steps):
            self.step()

        def ended() -> bool:
            if request_id in self.scheduler.requests:
                self.step()
            return request_id not in self.scheduler.requests

        wait_until(ended, f"the request {request_id} ends")
        assert self.scheduler.reset_prefix_cache()

    def break_file(self, number: int) -> None:
        """Cut the object of the prompt's n-th block short."""
        (file,) = self.pool.glob(f"umbp*:{request('any').block_hashes[number].hex()}")
        os.truncate(file, 1)


@pytest.fixture
def make_pair(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Pair]]:
    """Give pairs whose KV cache has a tensor."""
    placed = KVCacheTensor(
        size=BLOCKS * PAGE, layers=["layer"], layer_stride=BLOCKS * PAGE, block_stride=PAGE
    )
    cache = replace(schedulers.kv_cache_config(), kv_cache_tensors=[placed])
    monkeypatch.setattr(schedulers, "kv_cache_config", lambda **_: cache)
    monkeypatch.setattr("tests.support.kv.fake_mover.kv_cache_config", lambda **_: cache)
    built: list[Pair] = []

    def make(**options: Any) -> Pair:
        built.append(Pair(make_scheduler, tmp_path / "pool", **options))
        return built[-1]

    yield make
    for each in built:
        each.worker.shutdown()


def told(recorder: Recorder) -> list[tuple[Any, ...]]:
    """Return of each transfer: request, connector, direction, result and peer."""
    names = ("request_id", "connector", "direction", "result", "peer")
    return [tuple(each[name] for name in names) for each in recorder.transfers]


WAITS = pytest.mark.parametrize("waits", [True, False], ids=["waiting", "in the step"])


@WAITS
def test_a_load(waits: bool, make_pair: Callable[..., Pair], recorder: Recorder) -> None:
    """What the first request has stored, which nothing tells of, the second loads; the connector's own statistics go on."""
    pair = make_pair(load_async=waits)
    pair.serve("first")
    assert len(list(pair.pool.glob("umbp*"))) == 3
    before = pair.cache.clone()
    pair.cache.zero_()
    pair.serve("second", steps=8)
    assert told(recorder) == [("second", NAME, c.DIRECTION_RECEIVE, c.TRANSFER_RESULT_OK, "unknown")]
    assert {float(each.sum()) for each in pair.cache if each.any()} <= {float(each.sum()) for each in before}
    assert pair.counts["load_completed"] == 2
    assert pair.counts["load_num_bytes"] == 2 * PAGE
    assert not recorder.take("transfer_failure")


@WAITS
@pytest.mark.parametrize("action", ["recompute", "fail"])
def test_a_broken_object(
    waits: bool, action: str, make_pair: Callable[..., Pair], recorder: Recorder
) -> None:
    """The blocks that vLLM calls invalid are a failure of mode ``load``, decided by the policy."""
    pair = make_pair(load_async=waits)
    pair.serve("first")
    pair.break_file(1)
    runtime.policy.swap(policy(action), 1.0)
    pair.scheduler.add_request(request("second"))
    for _ in range(8):
        pair.step()
    assert "second" not in pair.scheduler.requests
    (failure,) = recorder.take("transfer_failure", "second")
    assert (failure.mode, failure.direction, failure.blocks) == (
        c.FAILURE_MODE_LOAD,
        c.DIRECTION_RECEIVE,
        1,
    )
    (outcome,) = recorder.take("load_outcome", "second")
    assert outcome.decided_by == c.DECIDED_BY_POLICY
    assert pair.counts["load_failed"] == 1


@WAITS
def test_a_pool_that_is_gone(waits: bool, make_pair: Callable[..., Pair], recorder: Recorder) -> None:
    """VLLM lets the runtime's exception out of the step, and with it its engine ends; it is reported before."""
    pair = make_pair(load_async=waits)
    pair.serve("first")
    (pair.pool / "gone").touch()
    pair.scheduler.add_request(request("second"))
    with pytest.raises(ConnectionResetError):
        pair.step()
    (failure,) = recorder.take("transfer_failure", "second")
    assert (failure.mode, failure.error_class) == (c.FAILURE_MODE_EXCEPTION, "ConnectionResetError")
    (pair.pool / "gone").unlink()


def test_a_look_up_that_takes_a_while(make_pair: Callable[..., Pair], recorder: Recorder) -> None:
    """With ``lookup_async`` the request is put off until a later step."""
    pair = make_pair(lookup_async=True)
    pair.serve("first")
    (deferral,) = recorder.take("deferral_start", "first")
    assert deferral.reason == c.DEFERRAL_REASON_KV_LOOKUP
