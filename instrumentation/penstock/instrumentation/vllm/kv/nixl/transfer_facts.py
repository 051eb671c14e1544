"""How a NIXL worker moves KV blocks, and the geometry of its peers: read from vLLM's worker on the exporter's thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from penstock.proto.v1.snapshot_pb2 import TransferFacts

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver
    from penstock.proto.v1.snapshot_pb2 import PeerStatus, Snapshot

# A backend's parameters may hold a secret (OBJ: secret_key), so only these are read.
_PARAMETERS: Final = ("device_list", "num_threads", "num_workers", "ucx_devices", "ucx_error_handling_mode")
# Variables that choose UCX's transports, devices and rails.
_ENVIRONMENT: Final = (
    "UCX_TLS", "UCX_NET_DEVICES", "UCX_MAX_RNDV_RAILS", "UCX_RNDV_SCHEME", "UCX_IB_GPU_DIRECT_RDMA",
    "UCX_CUDA_IPC_ENABLE_MNNVL",
)  # fmt: skip
_VALUE_MAX: Final = 200
_BACKENDS_MAX: Final = 8


class NixlTransferFacts:
    """The facts of one worker. Read once: they do not change after vLLM has registered its KV cache.

    What raised an error the first time is not tried again: the facts stay empty.
    """

    def __init__(self) -> None:
        self._facts: TransferFacts | None = None

    def fill(self, snapshot: Snapshot, observer: NixlObserver, worker: Any) -> None:
        """Add the facts to *snapshot*, once the KV cache is registered."""
        if self._facts is None and getattr(worker, "transfer_topo", None) is not None:
            self._facts = TransferFacts()
            self._facts = transfer_facts(worker, observer.connector, observer.rank)
        if self._facts is not None and self._facts.connector:
            snapshot.transfer.CopyFrom(self._facts)


def transfer_facts(worker: Any, connector: str, rank: int) -> TransferFacts:
    """Return what is known of a worker whose KV cache is registered; what this vLLM or NIXL lacks is left out."""
    facts = TransferFacts(
        connector=connector,
        rank=rank,
        kv_layout=str(getattr(worker, "kv_cache_layout", "")),
        attention_backend=str(getattr(worker, "backend_name", "")),
        memory=str(getattr(worker, "nixl_memory_type", "")),
    )
    agent = worker.nixl_wrapper
    for backend in sorted(map(str, getattr(agent, "backends", ())))[:_BACKENDS_MAX]:
        facts.backends.append(backend)
        known = agent.get_backend_params(backend)
        for name in _PARAMETERS:
            if name in known:
                facts.parameters[f"{backend}.{name}"] = _text(known[name])
    for name in _ENVIRONMENT:
        if name in os.environ:
            facts.environment[name] = _text(os.environ[name])
    return facts


def fill_geometry(status: PeerStatus, worker: Any) -> None:
    """Add what the handshake with a peer told of its geometry; nothing where vLLM has dropped it."""
    engines = getattr(getattr(worker, "transfer_topo", None), "_engines", None) or {}
    engine_id = status.peer.engine_id
    info = engines.get((engine_id, 0)) or engines.get(engine_id)
    status.tensor_parallel_size = int(getattr(info, "remote_tp_size", 0))
    status.block_size = int(getattr(info, "remote_block_size", 0))


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()[:_VALUE_MAX]
