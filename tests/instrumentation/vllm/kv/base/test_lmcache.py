"""What LMCache's adapters know of their server, without LMCache: a look-up that nobody answered is no miss."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base import lmcache
from penstock.instrumentation.vllm.kv.base.lmcache import LMCacheLookups, LMCacheNotes

from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, request
from tests.support.kv.fake_mover import ToyMover, mover, run_step, worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

URL = "tcp://10.0.0.7:5555"


class Adapter:
    """What both of LMCache's adapters have in common, and each of its own."""

    def __init__(self, url: str = URL) -> None:
        self._health_events = {url: threading.Event()}
        self._health_events[url].set()
        self._failed_request_ids: set[str] = set()

    @property
    def is_healthy(self) -> bool:
        """Whether the server answers."""
        return all(each.is_set() for each in self._health_events.values())

    def die(self) -> None:
        """No answer from now on."""
        for each in self._health_events.values():
            each.clear()


class LMCacheMPConnector(ToyMover):
    """A connector of LMCache's name, with its adapters."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.scheduler_adapter = self.worker_adapter = Adapter()


def config() -> dict[str, Any]:
    """Return the KVTransferConfig of an engine with it."""
    return mover("LMCacheMPConnector", kv_connector_module_path=__name__)


def test_a_look_up_that_nobody_answered(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """The server is the peer; the request is told once and computed here."""
    scheduler = make_scheduler(**config())
    connector = worker(scheduler.vllm_config)
    scheduler.add_request(request("before"))
    run_step(scheduler, [connector])
    assert not recorder.take("transfer_failure")  # a miss
    scheduler.connector.scheduler_adapter.die()
    scheduler.add_request(request("after"))
    run_step(scheduler, [connector])
    scheduler.connector.get_num_new_matched_tokens(scheduler.requests["after"], 0)
    (failure,) = recorder.take("transfer_failure")
    assert recorder.take("transfer_failure", "after") == [failure]
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_TIMEOUT)
    assert (failure.connector, failure.channel) == ("LMCacheMPConnector", c.CHANNEL_KV)
    assert failure.peer.address == "10.0.0.7:5555"
    assert failure.error_text == f"LMCache's server does not answer: {URL}"
    assert not recorder.take("load_outcome")


def test_what_it_found_before_is_no_failure(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A request that has something to load is not told; neither is one in a pause."""
    scheduler = make_scheduler(**config())
    scheduler.connector.scheduler_adapter.die()
    scheduler.add_request(request("r", params={"stored": BLOCK, "waits": True}))
    scheduler.schedule()
    scheduler.connector.get_num_new_matched_tokens(request("r"), 0)  # after it has lost its load
    runtime.pause("test", paused=True)
    try:
        scheduler.connector.get_num_new_matched_tokens(request("s"), 0)
    finally:
        runtime.pause("test", paused=False)
    assert not recorder.take("transfer_failure")


@pytest.mark.parametrize(
    ("dies", "error_type", "text"),
    [
        (True, c.ERROR_TYPE_TIMEOUT, f"LMCache's server does not answer: {URL}"),
        (False, c.ERROR_TYPE_OTHER, "LMCache's server answered that it has not loaded the blocks"),
    ],
)
def test_why_a_load_failed(
    dies: bool, error_type: int, text: str, make_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """By whether the server answers; in the failure and for the client."""
    scheduler = make_scheduler(**config())
    connector = worker(scheduler.vllm_config)
    runtime.policy.swap(policy("fail"), 1.0)
    scheduler.add_request(request("r", params={"stored": 2 * BLOCK, "waits": True}))
    run_step(scheduler, [connector])
    if dies:
        connector.worker_adapter.die()
    connector.worker_adapter._failed_request_ids.add("r")
    connector.script.received.add("r")
    connector.script.broken.update(scheduler.kv_cache_manager.get_block_ids("r")[0][:2])
    run_step(scheduler, [connector])
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_LOAD, error_type)
    assert failure.error_text.startswith(text)
    (outcome,) = recorder.take("load_outcome", "r")
    assert (outcome.outcome, outcome.error_type) == (c.OUTCOME_FAILED, error_type)


def test_loads_that_a_request_reports_by_itself() -> None:
    """Of several KV cache groups vLLM is told requests instead of blocks."""
    adapter = Adapter()
    notes = LMCacheNotes(SimpleNamespace(worker_adapter=adapter), rank=2)
    notes.on_results(SimpleNamespace(finished_recving={"good"}, failed_recving=set()))
    assert not notes.reasons
    notes.on_results(SimpleNamespace(finished_recving={"good", "bad"}, failed_recving={"bad"}))
    reasons, expired = notes.drain()
    assert [(each.request_id, each.rank) for each in reasons] == [("bad", 2)]
    assert expired == ()


def test_an_adapter_that_does_not_say(recorder: Recorder) -> None:
    """Of older LMCache and of vLLM's own: nothing is claimed; a server without an address is unknown."""
    for adapter in (None, SimpleNamespace()):
        LMCacheLookups(SimpleNamespace(scheduler_adapter=adapter), "L").on_nothing_found("r")
        notes = LMCacheNotes(SimpleNamespace(worker_adapter=adapter), rank=0)
        notes.on_results(SimpleNamespace(finished_recving={"r"}, failed_recving=set()))
        assert not notes.reasons
    assert not recorder.take("transfer_failure")
    LMCacheLookups(
        SimpleNamespace(scheduler_adapter=SimpleNamespace(is_healthy=False)), "L"
    ).on_nothing_found("r")
    (failure,) = recorder.take("transfer_failure")
    assert (failure.peer.address, failure.error_text) == ("unknown", "LMCache's server does not answer")


def test_told_requests_are_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, and one that has ended."""
    monkeypatch.setattr(lmcache, "_TOLD_MAX", 2)
    adapter = Adapter()
    adapter.die()
    lookups = LMCacheLookups(SimpleNamespace(scheduler_adapter=adapter), "L")
    for name in ("a", "b", "c", "b"):
        lookups.on_nothing_found(name)
    assert len(recorder.take("transfer_failure")) == len("abc")
    lookups.on_finished("b")
    lookups.on_finished("unknown")
    lookups.on_nothing_found("b")
    assert len(recorder.take("transfer_failure")) == len("abcb")
