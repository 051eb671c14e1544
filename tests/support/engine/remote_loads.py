"""Requests that read their KV from a peer, on vLLM's own scheduler, and loads that fail."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure, WorkerReport
from penstock.instrumentation.vllm.naming.peers import Peer

from tests.support.engine.schedulers import PEER, REMOTE, request, step


def failure(request_id: str, rank: int = 0) -> LoadFailure:
    """Return what a worker reports of a handshake that timed out."""
    peer = Peer(PEER, "prefill-engine")
    return LoadFailure(request_id, c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_TIMEOUT, peer, rank)


def park(scheduler: Any, request_id: str = "cmpl-a-0-12345678", **arguments: Any) -> Any:
    """Add a request that reads its KV from the peer, and let a step park it."""
    parked = request(request_id, params=REMOTE, **arguments)
    scheduler.add_request(parked)
    step(scheduler)
    assert parked.status.name == "WAITING_FOR_REMOTE_KVS"
    return parked


def blocks(scheduler: Any, waiting: Any, after: int = 0) -> set[int]:
    """Return the blocks that a request holds, without the first *after* ones."""
    return set(scheduler.kv_cache_manager.get_block_ids(waiting.request_id)[0][after:])


def fail_load(scheduler: Any, waiting: Any, *, with_blocks: bool = True, after: int = 0) -> Any:
    """Let a step report that the load of a request failed, as NIXL does with one rank; it began after *after* blocks."""
    each = waiting.request_id
    return step(
        scheduler,
        finished_recving={each},
        failed_recving={each},
        invalid_block_ids=blocks(scheduler, waiting, after) if with_blocks else set(),
        kv_connector_worker_meta=WorkerReport(failures=(failure(each),)),
    )
