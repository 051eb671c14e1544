"""VLLM's own connectors under a real scheduler, without an engine: the events of their loads and saves."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv import decider
from penstock.rules.policy import Action, Deferral

from tests.support.engine import schedulers
from tests.support.engine.parked import stop_reasons
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, BLOCKS, given_blocks, request
from tests.support.engine.versions import PLACE, from_version
from tests.support.kv.connector_trial import example, offloading
from tests.support.kv.fake_mover import run_step, worker
from tests.support.manual_clock import ManualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.v1.kv_cache_interface import KVCacheTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

RECEIVE, SEND = c.DIRECTION_RECEIVE, c.DIRECTION_SEND
OK, ERROR = c.TRANSFER_RESULT_OK, c.TRANSFER_RESULT_ERROR
# Two heads of 32 keys and as many values, as the schedulers' KV cache has.
SHAPE = (BLOCKS, 2, BLOCK, 64)
_STORES = from_version(
    0, 30, "takes the size of an offloaded block from tensors, which the schedulers' KV cache has not"
)


def told(recorder: Recorder) -> list[tuple[Any, ...]]:
    """Return of each transfer: request, connector, direction, result and peer."""
    names = ("request_id", "connector", "direction", "result", "peer")
    return [tuple(each[name] for name in names) for each in recorder.transfers]


def serve(scheduler: Any, connector: Any, request_id: str, context: Any = None, steps: int = 6) -> None:
    """Run a request to its end, and some steps more for what is saved behind it; then empty the prefix cache."""
    scheduler.add_request(request(request_id))
    for _ in range(steps):
        run_step(scheduler, [connector], context=context)
    assert request_id not in scheduler.requests
    assert scheduler.reset_prefix_cache()


class Cache:
    """One layer's KV cache with something in it."""

    def __init__(self) -> None:
        self.tensor = torch.rand(SHAPE)
        layer = SimpleNamespace(kv_cache=self.tensor)
        self.context = SimpleNamespace(attn_metadata={"layer": object()}, no_compile_layers={"layer": layer})


@pytest.fixture
def stored(make_scheduler: MakeScheduler, tmp_path: Path) -> tuple[Any, Any, Cache]:
    """Give scheduler, worker and cache of an ExampleConnector."""
    scheduler = make_scheduler(**example(tmp_path / "store"))
    return scheduler, worker(scheduler.vllm_config), Cache()


def test_example_connector(stored: tuple[Any, Any, Cache], recorder: Recorder) -> None:
    """It saves in the step that computes a prompt, and loads in the step that would compute it again."""
    scheduler, connector, cache = stored
    serve(scheduler, connector, "first", cache.context)
    serve(scheduler, connector, "second", cache.context)
    assert told(recorder) == [
        ("first", "ExampleConnector", SEND, OK, "unknown"),
        ("second", "ExampleConnector", RECEIVE, OK, "unknown"),
    ]
    assert all(each["duration_nano"] > 0 and each["bytes"] == 0 for each in recorder.transfers)
    assert "save_kv_layer" not in vars(connector)


def test_example_connector_with_several_requests_in_a_step(
    stored: tuple[Any, Any, Cache], recorder: Recorder
) -> None:
    """Each save has its request, also where two begin with the same blocks, and a prompt that is too short has none."""
    scheduler, connector, cache = stored
    scheduler.add_request(request("long", tokens=4 * BLOCK))
    scheduler.add_request(request("other", first=7))
    scheduler.add_request(request("short", tokens=BLOCK // 2))
    run_step(scheduler, [connector], context=cache.context)
    assert sorted(each["request_id"] for each in recorder.transfers) == ["long", "other"]


def test_example_connector_with_a_file_cut_short(
    stored: tuple[Any, Any, Cache], recorder: Recorder, tmp_path: Path
) -> None:
    """VLLM lets the exception out of the step; it is reported before."""
    scheduler, connector, cache = stored
    serve(scheduler, connector, "first", cache.context)
    (file,) = (tmp_path / "store").rglob("*.safetensors")
    os.truncate(file, file.stat().st_size // 2)
    scheduler.add_request(request("second"))
    with pytest.raises(Exception, match="header"):
        run_step(scheduler, [connector], context=cache.context)
    assert told(recorder)[1:] == [("second", "ExampleConnector", RECEIVE, ERROR, "unknown")]
    (failure,) = recorder.take("transfer_failure", "second")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_EXCEPTION, c.ERROR_TYPE_CORRUPT)
    assert failure.error_class == "SafetensorError"


def test_example_connector_with_a_full_disk(
    stored: tuple[Any, Any, Cache], recorder: Recorder, tmp_path: Path
) -> None:
    """A save that raises is a failure of that direction: here its directory is a file."""
    scheduler, connector, cache = stored
    (tmp_path / "store").write_text("")
    scheduler.add_request(request("r"))
    with pytest.raises(OSError, match="Not a directory"):
        run_step(scheduler, [connector], context=cache.context)
    assert told(recorder) == [("r", "ExampleConnector", SEND, ERROR, "unknown")]
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.direction, failure.mode, failure.attempt) == (SEND, c.FAILURE_MODE_EXCEPTION, 0)


@pytest.fixture
def offloaded(make_scheduler: MakeScheduler, tmp_path: Path) -> tuple[Any, Any]:
    """Give scheduler and worker of an OffloadingConnector that offloads to a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = make_scheduler(**offloading(tmp_path))
        connector = worker(scheduler.vllm_config)
        connector.register_kv_caches({"layer": torch.rand(SHAPE)})
    return scheduler, connector


@_STORES
def test_offloading_connector(offloaded: tuple[Any, Any], recorder: Recorder) -> None:
    """Saves and loads of one request each, with the bytes that its own statistics tell."""
    scheduler, connector = offloaded
    serve(scheduler, connector, "first")
    serve(scheduler, connector, "second")
    assert told(recorder) == [
        ("first", "OffloadingConnector", SEND, OK, "host"),
        ("second", "OffloadingConnector", RECEIVE, OK, PLACE),
    ]
    page = torch.rand(SHAPE[1:]).nbytes
    assert [each["bytes"] for each in recorder.transfers] == [3 * page, 3 * page]
    assert all(each["duration_nano"] > 0 for each in recorder.transfers)


@_STORES
def test_offloading_connector_that_cannot_load(
    offloaded: tuple[Any, Any], recorder: Recorder, tmp_path: Path
) -> None:
    """VLLM asserts that jobs succeed; the load in flight is reported as failed before."""
    scheduler, connector = offloaded
    serve(scheduler, connector, "first")
    os.truncate(tmp_path / "offloaded", 0)
    scheduler.add_request(request("second"))
    with pytest.raises(AssertionError):
        run_step(scheduler, [connector])
    assert told(recorder)[1:] == [("second", "OffloadingConnector", RECEIVE, ERROR, PLACE)]
    (failure,) = recorder.take("transfer_failure", "second")
    assert (failure.mode, failure.error_class) == (c.FAILURE_MODE_EXCEPTION, "AssertionError")


@_STORES
def test_an_offloaded_load_over_its_deadline(
    offloaded: tuple[Any, Any], recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request fails; nobody has its blocks when the copy comes, which it does late; then the same prompt loads well."""
    clock = ManualClock()
    monkeypatch.setattr(decider, "time", SimpleNamespace(monotonic_ns=clock))
    scheduler, connector = offloaded
    serve(scheduler, connector, "first")
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    runtime.policy.swap(
        policy("recompute", deferral=Deferral(max_transfer_wait=5, on_timeout=Action.RECOMPUTE)), 1.0
    )
    hangs = tmp_path / "gate"
    hangs.touch()
    scheduler.add_request(request("second"))
    run_step(scheduler, [connector])
    (pinned,) = scheduler.kv_cache_manager.get_block_ids("second")
    clock.advance(6)
    told_clients = stop_reasons(run_step(scheduler, [connector]))
    assert f"mode timeout, deferral.maxTransferWait 5 s, peer {PLACE}" in told_clients["second"]
    assert "cannot be rewound" in told_clients["second"]
    # Others take all blocks there are.
    used = given_blocks(scheduler)
    for number in range(free // 3):
        scheduler.add_request(request(f"other-{number}", first=100 + number, max_tokens=1))
    for _ in range(60):
        run_step(scheduler, [connector])
    assert not [each for each in scheduler.requests if each.startswith("other")]
    assert len(used) > free // 2
    assert used.isdisjoint(pinned)
    assert scheduler.kv_cache_manager.get_block_ids("second") == (pinned,)
    hangs.unlink()
    run_step(scheduler, [connector])
    run_step(scheduler, [connector])
    assert "second" not in scheduler.requests
    assert [each.released for each in recorder.take("blocks_pinned", "second")] == [False, True]
    assert ("second", "OffloadingConnector", RECEIVE, OK, PLACE) in told(recorder)
    assert len(recorder.take("transfer_failure")) == len(recorder.take("load_outcome")) == 1
    assert scheduler.reset_prefix_cache()
    serve(scheduler, connector, "third")
    assert ("third", "OffloadingConnector", RECEIVE, OK, PLACE) in told(recorder)


class _Done:
    """An event of a stream without anything in it."""

    def record(self, stream: object = None) -> None:
        """Mark nothing."""

    def query(self) -> bool:
        """Say that all is done."""
        return True


class _Copies:
    """Stands in for the copies between an accelerator and memory, which need CUDA streams."""

    def launch_copy(self, src: Any, dst: Any, *, event_idx: int, events_list: list[Any], **_: Any) -> None:
        """Be done at once."""
        assert len(src) == len(dst)
        events_list.append((event_idx, _Done()))


@from_version(0, 29, "describes the tensors of a KV cache otherwise")
def test_simple_cpu_offload_connector(
    make_scheduler: MakeScheduler, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's saves are one transfer without a request; a load is one of its request."""
    page = torch.rand(SHAPE[1:]).nbytes
    placed = KVCacheTensor(
        size=BLOCKS * page, layers=["layer"], layer_stride=BLOCKS * page, block_stride=page
    )
    cache = replace(schedulers.kv_cache_config(), kv_cache_tensors=[placed])
    monkeypatch.setattr(schedulers, "kv_cache_config", lambda **_: cache)
    scheduler = make_scheduler(kv_connector="SimpleCPUOffloadConnector", kv_role="kv_both")
    connector = worker(scheduler.vllm_config)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    connector.worker_handler._backend = _Copies()
    connector.worker_handler._store_compute_done = _Done()
    serve(scheduler, connector, "first")
    serve(scheduler, connector, "second")
    name = "SimpleCPUOffloadConnector"
    assert told(recorder) == [("", name, SEND, OK, PLACE), ("second", name, RECEIVE, OK, PLACE)]
