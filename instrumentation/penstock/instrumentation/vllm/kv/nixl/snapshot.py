"""A NIXL worker's contribution to the snapshot: transfers in flight, pinned blocks, peers, vLLM's own counters."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.kv.nixl.transfer_facts import NixlTransferFacts, fill_geometry
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.nixl.observer import NixlObserver
    from penstock.proto.v1.snapshot_pb2 import HeldBlocks, Snapshot

_GUARD = guard("nixl")

PEERS_MAX = 512
"""Peers in a snapshot, the last used first: restarted peers and names made up by clients would accumulate."""

EXPIRY_NS = 3_600 * NANOS
"""Nanoseconds since the last handshake after which a peer that vLLM has dropped is omitted."""


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
