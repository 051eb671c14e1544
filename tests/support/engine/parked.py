"""Requests of a decode engine that wait for their KV, and what workers say about their loads."""

from __future__ import annotations

from typing import Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure, WorkerReport
from penstock.instrumentation.vllm.naming.peers import Peer

from tests.support.engine.schedulers import PEER, REMOTE, request, step
from tests.support.engine.versions import client_text


def remote(peer: str = PEER, engine_id: str = "prefill-engine", request_id: str = "theirs") -> dict[str, Any]:
    """Return the ``kv_transfer_params`` of a request whose KV is at *peer*, as *request_id* there."""
    host, _, port = peer.rpartition(":")
    return {
        **REMOTE,
        "remote_host": host,
        "remote_port": int(port),
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
    }


def park(scheduler: Any, request_id: str, *, peer: str = PEER, **arguments: Any) -> Any:
    """Add a request that reads its KV from the peer, and let a step park it."""
    parked = request(request_id, params=remote(peer, request_id=f"their-{request_id}"), **arguments)
    scheduler.add_request(parked)
    step(scheduler)
    assert parked.status.name == "WAITING_FOR_REMOTE_KVS", parked.status
    return parked


def fail_loads(scheduler: Any, *waiting: Any, mode: int = c.FAILURE_MODE_HANDSHAKE, **failure: Any) -> Any:
    """Let one step report that the loads of these requests failed, as NIXL does with one rank."""
    ids = {each.request_id for each in waiting}
    failures = tuple(
        LoadFailure(each.request_id, mode, c.ERROR_TYPE_TIMEOUT, Peer(), **failure) for each in waiting
    )
    blocks = {
        block
        for each in waiting
        for group in scheduler.kv_cache_manager.get_block_ids(each.request_id)
        for block in group
    }
    return step(
        scheduler,
        finished_recving=ids,
        failed_recving=ids,
        invalid_block_ids=blocks,
        kv_connector_worker_meta=WorkerReport(failures=failures),
    )


def finish_loads(scheduler: Any, *waiting: Any) -> Any:
    """Let one step report that the loads of these requests ended well."""
    return step(scheduler, finished_recving={each.request_id for each in waiting})


def serve(scheduler: Any, *requests: Any, steps: int = 50) -> None:
    """Step until these requests have left."""
    for _ in range(steps):
        if not any(each.request_id in scheduler.requests for each in requests):
            return
        step(scheduler)
    raise AssertionError(f"still there after {steps} steps: {sorted(scheduler.requests)}")


def stop_reasons(outputs: dict[int, Any]) -> dict[str, Any]:
    """Return the stop reason of each request that ended with an error in a step, or what stands for it in a newer vLLM."""
    return {
        output.request_id: client_text(output)
        for batch in outputs.values()
        for output in batch.outputs
        if output.finish_reason is not None and str(output.finish_reason) == "error"
    }
