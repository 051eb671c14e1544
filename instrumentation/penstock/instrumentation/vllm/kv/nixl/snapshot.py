"""A NIXL worker's contribution to the snapshot, on the exporter's thread.

Transfers in flight, pinned blocks, peers and their geometry, how KV blocks are moved, vLLM's own counters.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.proto.names import NANOS
from penstock.proto.v1.snapshot_pb2 import TransferFacts

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver
    from penstock.proto.v1.snapshot_pb2 import HeldBlocks, PeerStatus, Snapshot

# A backend's parameters may hold a secret (OBJ: secret_key), so only these are read.
_PARAMETERS: Final = ("device_list", "num_threads", "num_workers", "ucx_devices", "ucx_error_handling_mode")
# Variables that choose UCX's transports, devices and rails.
_ENVIRONMENT: Final = (
    "UCX_TLS", "UCX_NET_DEVICES", "UCX_MAX_RNDV_RAILS", "UCX_RNDV_SCHEME", "UCX_IB_GPU_DIRECT_RDMA",
    "UCX_CUDA_IPC_ENABLE_MNNVL",
)  # fmt: skip
_VALUE_MAX: Final = 200
_BACKENDS_MAX: Final = 8
_GUARD = guard("nixl")

PEERS_MAX = 512
"""Peers in a snapshot, the last used first: restarted peers and names made up by clients would accumulate."""

EXPIRY_NS = 3_600 * NANOS
"""Nanoseconds since the last handshake after which a peer that vLLM has dropped is omitted."""


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
            snapshot.transfer.released_time_unix_nano = observer.caches_released_ns


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
        known, defaults = agent.get_backend_params(backend), _defaults(agent, backend)
        for name in _PARAMETERS:
            if name in known:
                facts.parameters[f"{backend}.{name}"] = _text(known[name])
            elif defaults.get(name):
                facts.default_parameters[f"{backend}.{name}"] = _text(defaults[name])
    for name in _ENVIRONMENT:
        if name in os.environ:
            facts.environment[name] = _text(os.environ[name])
    return facts


def _defaults(agent: Any, backend: str) -> dict[str, Any]:
    """Return what the plugin of a backend has where the agent's maker gives nothing; empty from a NIXL that does not tell."""
    tell = getattr(agent, "get_plugin_params", None)
    return tell(backend) if tell is not None else {}


def fill_geometry(status: PeerStatus, worker: Any) -> None:
    """Add what the handshake with a peer told of its geometry; nothing where vLLM has dropped it."""
    engines = getattr(getattr(worker, "transfer_topo", None), "_engines", None) or {}
    engine_id = status.peer.engine_id
    info = engines.get((engine_id, 0)) or engines.get(engine_id)
    status.tensor_parallel_size = int(getattr(info, "remote_tp_size", 0))
    status.block_size = int(getattr(info, "remote_block_size", 0))


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()[:_VALUE_MAX]


class NixlSnapshot:
    """Reads a worker on the exporter's thread; copies vLLM's tables in one operation before reading them."""

    def __init__(self, observer: NixlObserver, worker: Any) -> None:
        """Read *worker* while vLLM keeps it alive."""
        self._observer = observer
        self._worker = weakref.ref(worker)
        self._transfer = NixlTransferFacts()

    def fill(self, snapshot: Snapshot) -> None:
        """Add this worker to *snapshot*."""
        observer = self._observer
        for peer, count, oldest in observer.transfers.in_flight():
            snapshot.in_flight.add(
                channel=c.CHANNEL_KV,
                connector=observer.connector,
                peer=peer.fields(),
                count=count,
                oldest_start_time_unix_nano=oldest,
                component=c.COMPONENT_WORKER,
                rank=observer.rank,
            )
        for peer, count, oldest in observer.handshakes.waiting():
            snapshot.progress.handshaking.add(
                peer=peer.fields(), count=count, oldest_start_time_unix_nano=oldest
            )
        self._fill_held(snapshot)
        for name, upstream, seen in observer.counts.totals:
            snapshot.upstream_counts.add(
                name=name, upstream=upstream, seen=seen, connector=observer.connector, rank=observer.rank
            )
        worker = self._worker()
        if worker is not None:
            with _GUARD:
                self._transfer.fill(snapshot, observer, worker)
            # Last, as it reads vLLM's tables: what it cannot read costs the snapshot nothing else.
            self._fill_peers(snapshot, worker)

    def _fill_held(self, snapshot: Snapshot) -> None:
        """Add the blocks that are pinned on this rank; what else holds blocks, the scheduler knows."""
        rows: dict[str, HeldBlocks] = {}
        for fields in self._observer.pinned_blocks():
            peer, since = fields["peer"], fields["since_time_unix_nano"]
            row = rows.get(peer["address"])
            if row is None:
                row = rows[peer["address"]] = snapshot.held.add(holder=c.BLOCK_HOLDER_PINNED, peer=peer)
                row.oldest_start_time_unix_nano = since
            row.requests += 1
            row.blocks += fields["blocks"]
            row.oldest_start_time_unix_nano = min(row.oldest_start_time_unix_nano, since)

    def _fill_peers(self, snapshot: Snapshot, worker: Any) -> None:
        connected = worker._remote_agents.copy()
        last_active = worker._engine_last_active.copy()
        # Until 0.31 vLLM marks none.
        invalid = getattr(worker, "_invalid_remote_engines", frozenset[str]()).copy()
        wall_minus_monotonic = time.time() - time.perf_counter()
        old = time.time_ns() - EXPIRY_NS
        for handshake in reversed(self._observer.handshakes.recent(PEERS_MAX)):
            peer = handshake.peer
            if (
                handshake.queued_ns < old
                and peer.engine_id not in connected
                and peer.engine_id not in invalid
            ):
                continue
            status = snapshot.peers.add(
                peer=peer.fields(),
                connected=peer.engine_id in connected,
                upstream_invalid=peer.engine_id in invalid,
            )
            for other in handshake.others.copy().values():
                if other.is_accused:
                    status.other_addresses.add(
                        address=other.peer.address,
                        owner=other.owner,
                        transfers=other.transfers,
                        first_time_unix_nano=other.first_ns,
                    )
            with _GUARD:
                fill_geometry(status, worker)
            if handshake.failure is not None and not status.connected:
                status.handshake_error = handshake.failure.error_type  # type: ignore[assignment]
                status.handshake_error_text = handshake.failure.error_text
                status.handshake_factors.extend(handshake.failure.factors)
            if status.connected and handshake.clock_offset_ns is not None:
                status.clock_offset_nano = handshake.clock_offset_ns
            if peer.engine_id in last_active:
                active = last_active[peer.engine_id] + wall_minus_monotonic
                status.last_active_unix_nano = int(active * NANOS)
