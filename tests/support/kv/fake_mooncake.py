"""A connector with vLLM's own Mooncake worker in it, without Mooncake: its way of asking a prefill server works, its engine is missing."""

from __future__ import annotations

import asyncio
import queue
import time
import warnings
from types import SimpleNamespace
from typing import Any

from tests.support.engine.versions import KVConnectorTransferResults
from tests.support.kv.fake_mover import ToyMover, mover

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    import msgspec
    import zmq.asyncio
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (
        MooncakeConnectorWorker,
        MooncakeXferResponse,
        PullReqMeta,
        SendBlockMeta,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.stats import MooncakeKVConnectorStats


class ToyMooncake(ToyMover):
    """Its loads are what the test has the worker pull."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.connector_worker: Any = None
        if role is KVConnectorRole.WORKER:
            self.connector_worker = _worker()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Tell of the pulls that have ended, and of the leases that were read or ran out."""
        del finished_req_ids
        ended = self.connector_worker.finished_recving_reqs
        received = set(ended)
        ended.clear()
        sent = asyncio.run(self.connector_worker.fetch_finished_sending_reqs())
        return KVConnectorTransferResults(
            finished_sending=sent, finished_recving=received, failed_recving=set()
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Ask the worker."""
        blocks: set[int] = self.connector_worker.get_block_ids_with_load_errors()
        return blocks


def toy_mooncake() -> dict[str, Any]:
    """Return the KVTransferConfig of an engine with it."""
    return mover("ToyMooncake", kv_role="kv_both", kv_connector_module_path=__name__)


def lease(worker: Any, request_id: str, seconds: float) -> None:
    """Let the blocks of an ended request wait for their reader; negative *seconds*: it is too late by so many."""
    worker.reqs_need_send[f"transfer-{request_id}"] = SendBlockMeta(
        p_req_id=request_id,
        transfer_id=f"transfer-{request_id}",
        local_block_ids=[[1]],
        ready=asyncio.Event(),
        expire_time=time.perf_counter() + seconds,
    )


def pull(request_id: str, blocks: list[int], bootstrap: str = "") -> dict[str, PullReqMeta]:
    """Return the worker's pull instructions for one request."""
    return {
        request_id: PullReqMeta(
            d_req_id=request_id,
            transfer_id="transfer",
            local_block_ids=[blocks],
            remote_engine_id="prefill-engine",
            remote_bootstrap_addr=bootstrap,
        )
    }


class _Worker(MooncakeConnectorWorker):
    """Ends with its sockets; there is no engine to end."""

    def __del__(self) -> None:
        self.async_zmq_ctx.destroy(linger=0)


def _worker() -> Any:
    worker = object.__new__(_Worker)
    # What a pull looks at; its address space belongs to no process, since nothing is written to it.
    worker.hostname, worker.rpc_port = "127.0.0.1", 1
    worker.tp_size, worker.tp_rank, worker.pp_size = 1, 0, 1
    worker.kv_caches_base_addr, worker.block_len_per_layer, worker.kv_block_len_per_layer = [], [], []
    worker.registered_layer_names, worker.registered_layer_indices = [], []
    worker.registered_group_indices, worker.region_shared_groups, worker.region_row_offsets = [], [], []
    worker._encoder = msgspec.msgpack.Encoder()
    worker._xfer_resp_decoder = msgspec.msgpack.Decoder(MooncakeXferResponse)
    worker.async_zmq_ctx = zmq.asyncio.Context()
    worker._remote_agents, worker._pending_bootstrap_queries, worker._tp_size = {}, {}, {}
    worker._is_hma_required = False
    # vLLM 0.33: nothing is registered, so there is no layout to name.
    worker._kv_layout_id, worker._acked_layout_peers = 0, set()
    worker._invalid_block_ids = queue.Queue()
    worker.finished_recving_reqs, worker.finished_sending_reqs = set(), set()
    worker.reqs_need_send = {}
    # What Mooncake answers to each write.
    worker.code = 0
    worker.engine = SimpleNamespace(batch_transfer_sync_write=lambda *_: worker.code)
    worker.xfer_stats = MooncakeKVConnectorStats()
    return worker
