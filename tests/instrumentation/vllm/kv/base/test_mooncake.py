"""What MooncakeConnector's worker knows and vLLM only logs: why a load failed, which leases ran out, which writes failed.

It is vLLM's own worker; it asks peers over real sockets. What it counts is compared with what the hooks have seen.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.base.connector_adapters import classify_mooncake_failure
from penstock.instrumentation.vllm.messages import worker_report
from penstock.instrumentation.vllm.messages.worker_report import LoadFailureReasons
from penstock.instrumentation.vllm.naming.failure_modes import Failure

from demo.common.processes import free_port
from tests.support.engine.recorder import policy
from tests.support.engine.schedulers import BLOCK, request
from tests.support.kv.fake_mooncake import lease, pull, toy_mooncake
from tests.support.kv.fake_mover import run_step, worker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (
        MooncakeXferResponse,
        MooncakeXferResponseStatus,
    )

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


@pytest.mark.parametrize(
    ("reason", "mode", "error_type"),
    [
        (
            "remote engine_id e1 not found from bootstrap server http://10.0.0.7:8998",
            c.FAILURE_MODE_HANDSHAKE,
            c.ERROR_TYPE_OTHER,
        ),
        ("Timeout waiting for P side ready.", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_TIMEOUT),
        ("P num blocks less than D", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER),
        ("KV group count mismatch", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_INCOMPATIBLE),
        (
            "This D tp_rank 3 is not paired with P tp_rank 0; expected one of [0, 1].",
            c.FAILURE_MODE_SETUP,
            c.ERROR_TYPE_INCOMPATIBLE,
        ),
        (
            "Mooncake KV region length mismatch for homogeneous TP at region 0: local=64, remote=32.",
            c.FAILURE_MODE_SETUP,
            c.ERROR_TYPE_INCOMPATIBLE,
        ),
        ("Mooncake transfer engine returned -1", c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_OTHER),
        (
            "KV group count mismatch; Mooncake transfer engine returned -1",
            c.FAILURE_MODE_TRANSFER,
            c.ERROR_TYPE_OTHER,
        ),
        ("transfer error", c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER),
        ("", c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER),
    ],
)
def test_what_a_reason_says(reason: str, mode: int, error_type: int) -> None:
    """Mode and error type by the worker's words; what says nothing is a load that failed."""
    assert classify_mooncake_failure(reason, None) == Failure(mode, error_type, error_text=reason)


def test_what_an_error_says() -> None:
    """Where the worker handles an exception, its class tells; the text is the worker's, and bounded."""
    found = classify_mooncake_failure("transfer failed: Resource temporarily unavailable", zmq.Again())
    assert (found.mode, found.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_TIMEOUT)
    assert (found.error_class, found.upstream_type) == ("Again", "")
    assert found.error_text.startswith("transfer failed: ")
    broken = classify_mooncake_failure("transfer failed: ?", msgspec.DecodeError("x"))
    assert broken.error_type == c.ERROR_TYPE_DECODE
    assert len(classify_mooncake_failure("x" * 5_000, None).error_text) == 1_024


def test_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scheduler does not fetch is not kept without end; what is lost is counted."""
    monkeypatch.setattr(worker_report, "REASONS_MAX", 2)
    lost: list[tuple[str, str]] = []
    monkeypatch.setattr(runtime.emitter.drops, "add", lambda *row: lost.append(row))
    reasons = LoadFailureReasons(3)
    for name in "abc":
        reasons.note(name, Failure(c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER))
    assert [(each.request_id, each.rank) for each in reasons.drain()] == [("a", 3), ("b", 3)]
    assert not reasons
    assert len(lost) == 1


@pytest.fixture
def loading(make_scheduler: MakeScheduler) -> tuple[Any, Any, list[int]]:
    """Give a scheduler, a worker's connector and the blocks of a request "r" that waits for them."""
    scheduler = make_scheduler(**toy_mooncake())
    connector = worker(scheduler.vllm_config)
    scheduler.add_request(
        request(
            "r",
            params={
                "stored": 2 * BLOCK,
                "waits": True,
                "do_remote_prefill": True,
                "remote_engine_id": "prefill-engine",
                "remote_bootstrap_addr": "http://10.0.0.7:8998",
            },
        )
    )
    run_step(scheduler, [connector])
    return scheduler, connector, scheduler.kv_cache_manager.get_block_ids("r")[0][:2]


def test_no_listener_at_the_bootstrap_address(
    loading: tuple[Any, Any, list[int]], recorder: Recorder
) -> None:
    """The first contact failed: mode handshake, with the peer, in failure and outcome and for the client."""
    scheduler, connector, blocks = loading
    runtime.policy.swap(policy("fail"), 1.0)
    address = f"http://127.0.0.1:{free_port()}"
    asking = connector.connector_worker.handle_new_engine_id("prefill-engine", pull("r", blocks, address))
    asyncio.run(asking)
    run_step(scheduler, [connector])
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_OTHER)
    assert "not found from bootstrap" in failure.error_text
    assert (failure.peer.address, failure.blocks) == ("10.0.0.7:8998", 2)
    (outcome,) = recorder.take("load_outcome", "r")
    assert outcome.mode == c.FAILURE_MODE_HANDSHAKE


@pytest.mark.parametrize(
    ("response", "mode", "error_type"),
    [
        (
            {
                "status": MooncakeXferResponseStatus.ERROR,
                "err_msg": "This D tp_rank 3 is not paired with P tp_rank 0",
            },
            c.FAILURE_MODE_SETUP,
            c.ERROR_TYPE_INCOMPATIBLE,
        ),
        (
            {
                "status": MooncakeXferResponseStatus.FINISH,
                "err_reqs": ["r"],
                "err_msg": "Mooncake transfer engine returned -1",
            },
            c.FAILURE_MODE_TRANSFER,
            c.ERROR_TYPE_OTHER,
        ),
        (None, c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_DECODE),
    ],
    ids=["error", "finish", "no answer of Mooncake's"],
)
def test_what_the_peer_answers(
    response: dict[str, Any] | None,
    mode: int,
    error_type: int,
    loading: tuple[Any, Any, list[int]],
    recorder: Recorder,
) -> None:
    """A peer that answers with an error, or with what is none of Mooncake's messages."""
    scheduler, connector, blocks = loading
    host = connector.connector_worker
    answer = b"\xff" if response is None else msgspec.msgpack.encode(MooncakeXferResponse(**response))

    async def ask() -> None:
        with host.async_zmq_ctx.socket(zmq.ROUTER) as peer:
            port = peer.bind_to_random_port("tcp://127.0.0.1")

            async def reply() -> None:
                identity, _ = await peer.recv_multipart()
                await peer.send_multipart((identity, answer))

            await asyncio.gather(
                reply(), host.receive_kv_from_single_worker(f"tcp://127.0.0.1:{port}", pull("r", blocks))
            )

    asyncio.run(ask())
    run_step(scheduler, [connector])
    (failure,) = recorder.take("transfer_failure", "r")
    assert (failure.mode, failure.error_type) == (mode, error_type)
    assert failure.error_text
    (outcome,) = recorder.take("load_outcome", "r")
    assert (outcome.mode, outcome.error_type) == (mode, error_type)


def test_a_failure_is_reported_once(loading: tuple[Any, Any, list[int]], recorder: Recorder) -> None:
    """A second report about a request that has failed already is not another one."""
    scheduler, connector, blocks = loading
    metas = pull("r", blocks)
    for _ in range(2):
        connector.connector_worker._handle_failed_recv(metas, ["r", "unknown"], "transfer error")
    run_step(scheduler, [connector])
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.error_text) == (c.FAILURE_MODE_LOAD, "transfer error")


def counted(recorder: Recorder) -> dict[str, tuple[int, int]]:
    """Return vLLM's number and the hooks' for each counter in the snapshot."""
    rows = recorder.snapshot().upstream_counts
    assert {(row.connector, row.rank) for row in rows} <= {("ToyMooncake", 0)}
    return {row.name: (row.upstream, row.seen) for row in rows}


def test_failed_loads_are_as_many_as_vllm_counts(
    loading: tuple[Any, Any, list[int]], recorder: Recorder
) -> None:
    """Each request once, however often vLLM reports it."""
    _, connector, blocks = loading
    host = connector.connector_worker
    metas = pull("r", blocks) | pull("s", blocks)
    host._handle_failed_recv(metas, ["r", "r", "s"], "transfer error")
    host._handle_failed_recv(metas, ["s"], "transfer error")
    host.get_kv_connector_stats()
    assert counted(recorder) == {"num_failed_recvs": (2, 2)}


def test_a_lease_that_runs_out(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """A failure and a failed send, not a read; one that was read is as before."""
    scheduler = make_scheduler(**toy_mooncake())
    connector = worker(scheduler.vllm_config)
    host = connector.connector_worker
    for name in ("late", "read", "waiting"):
        params = {"keeps": True, "do_remote_decode": True}
        scheduler.add_request(request(name, max_tokens=1, params=params))
    run_step(scheduler, [connector])
    lease(host, "late", seconds=-1.0)
    lease(host, "waiting", seconds=60.0)
    host.finished_sending_reqs.add("read")
    run_step(scheduler, [connector])
    host.get_kv_connector_stats()

    (failure,) = recorder.take("transfer_failure")
    assert recorder.take("transfer_failure", "late") == [failure]
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_TIMEOUT)
    assert (failure.direction, failure.peer.address) == (c.DIRECTION_SEND, "unknown")
    endings = {name: recorder.take("lease_closed", name)[0].ending for name in ("late", "read")}
    assert endings == {"late": c.LEASE_ENDING_EXPIRED, "read": c.LEASE_ENDING_READ}
    assert not recorder.take("lease_closed", "waiting")
    sent = {each["request_id"]: each["result"] for each in recorder.transfers}
    assert sent == {"late": c.TRANSFER_RESULT_ERROR, "read": c.TRANSFER_RESULT_OK}
    assert counted(recorder) == {"num_kv_expired_reqs": (1, 1)}
    assert not recorder.take("load_outcome")


def test_a_write_that_fails(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """Its reader's session is the peer; a good one is none."""
    connector = worker(make_scheduler(**toy_mooncake()).vllm_config)
    host = connector.connector_worker
    assert host._send_blocks("10.0.0.9:7001", [1], [2], [64]) == 0
    host.code = -1
    assert host._send_blocks("10.0.0.9:7001", [1], [2], [64]) == -1
    host.get_kv_connector_stats()
    (failure,) = recorder.take("transfer_failure")
    assert (failure.mode, failure.direction) == (c.FAILURE_MODE_TRANSFER, c.DIRECTION_SEND)
    assert failure.peer.address == "10.0.0.9:7001"
    assert failure.error_text == "Mooncake transfer engine returned -1"
    assert counted(recorder) == {"num_failed_transfers": (1, 1)}


def test_what_a_worker_does_in_a_pause(make_scheduler: MakeScheduler, recorder: Recorder) -> None:
    """It is counted on neither side; the snapshot ends with the worker."""
    connector = worker(make_scheduler(**toy_mooncake()).vllm_config)
    host = connector.connector_worker
    host.code = -1
    runtime.pause("test", paused=True)
    try:
        host._send_blocks("10.0.0.9:7001", [1], [2], [64])
    finally:
        runtime.pause("test", paused=False)
    host.get_kv_connector_stats()
    assert counted(recorder) == {}
    host._send_blocks("[fd00::9]:7001", [1], [2], [64])
    host.get_kv_connector_stats()
    assert counted(recorder) == {"num_failed_transfers": (1, 1)}
    assert [each.peer.address for each in recorder.take("transfer_failure")] == ["[fd00::9]:7001"]
    del connector, host
    gc.collect()
    assert counted(recorder) == {}
