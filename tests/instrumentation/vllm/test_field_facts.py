"""How vLLM really behaves where one would guess otherwise: rows of ``docs/reference/field-facts.md`` that no other test shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zmq
from nixl._api import nixl_agent, nixl_agent_config
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from tests.support.engine import schedulers
from tests.support.engine.versions import from_version

if TYPE_CHECKING:
    from pathlib import Path

NEWER = from_version(0, 32, "has other schedulers of NixlConnector")
REMOTE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[4, 5, 6]],
    "remote_engine_id": "prefill",
    "remote_request_id": "prefill-r",
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "tp_size": 1,
}


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build vLLM's own scheduler with NixlConnector, as it is without Penstock."""
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "1")
    config = schedulers.vllm_config(
        tmp_path, kv_connector="NixlConnector", kv_role="kv_both", kv_buffer_device="cpu"
    )
    return schedulers.build(Scheduler, config)


@NEWER
def test_a_load_counts_as_a_hit_before_it_has_begun(scheduler: Any) -> None:
    """``external_prefix_cache_hits`` counts what the connector promises; nobody is there to load it from, and it stays counted."""
    scheduler.add_request(schedulers.request("r", params=REMOTE))
    scheduler.schedule()
    stats = scheduler.connector_prefix_cache_stats
    promised = stats.hits
    assert promised > 0
    schedulers.step(scheduler, finished_recving={"r"}, failed_recving={"r"})
    # What a step tells is another object from then on; nothing is taken back.
    assert stats.hits >= promised
    assert scheduler.connector_prefix_cache_stats.hits >= 0


@NEWER
def test_parameters_are_returned_though_a_stop_token_ended_the_prefill(scheduler: Any) -> None:
    """A router that hands them on sends decode a request whose answer is complete."""
    request = schedulers.request("r", max_tokens=1, params={"do_remote_decode": True})
    request.status = RequestStatus.FINISHED_STOPPED
    keeps, params = scheduler.connector.request_finished(request, ([4, 5, 6],))
    assert keeps
    assert params["do_remote_prefill"]


def test_a_publisher_of_kv_events_with_an_address_connects() -> None:
    """Only a wildcard (``tcp://*:5557``) is listened on: who wants the events of a pod's own address has to listen there."""
    context = zmq.Context.instance()
    with context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        port = subscriber.bind_to_random_port("tcp://127.0.0.1")
        publisher = ZmqEventPublisher(data_parallel_rank=0, endpoint=f"tcp://127.0.0.1:{port}")
        try:
            for _ in range(300):
                # What is published before the two have met is lost.
                publisher.publish(KVEventBatch(ts=1.0, events=[]))
                if subscriber.poll(100):
                    break
            assert subscriber.recv_multipart(zmq.NOBLOCK)
        finally:
            publisher.shutdown()


def test_nixl_tells_defaults_elsewhere_than_what_was_given() -> None:
    """A backend without parameters has none by ``get_backend_params``; those in force are the plugin's."""
    agent = nixl_agent("field-facts", nixl_agent_config(backends=["UCX"]))
    assert "num_workers" not in agent.get_backend_params("UCX")
    assert agent.get_plugin_params("UCX")["num_workers"] == "1"
