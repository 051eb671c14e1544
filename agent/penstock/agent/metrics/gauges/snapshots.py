"""Gauges of connected sources, from the last snapshot of each; nothing here is ever restored.

| gauge | over the sources of an engine |
|---|---|
| in flight, deferred, running, waiting, free blocks | sum |
| oldest start | minimum |
| leases, held blocks | maximum over the ranks: they hold the same requests |
| pending, unacknowledged, unaccounted | sum |
| paused, out of rotation | all of them |
| peers | union; of a peer that several report, the last rank's word |
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from penstock.agent.metrics.catalogue import from_snapshots
from penstock.agent.metrics.gauges.engine import (
    MAX,
    MIN,
    add,
    add_facts,
    add_hooks,
    add_pause,
    add_policy,
    add_rotation,
)
from penstock.agent.metrics.series import UNKNOWN, peer_of
from penstock.agent.model import engines_by_server
from penstock.proto.names import NANOS, label
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events
from penstock.proto.v1.snapshot_pb2 import BlockHolder, QueueReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.metrics.gauges.engine import GaugeSet
    from penstock.agent.model import EngineKey
    from penstock.agent.sources import LiveSource
    from penstock.proto.v1.snapshot_pb2 import PeerStatus, SchedulerQueue, Snapshot


Wanted: TypeAlias = "Callable[[EngineKey], str | None]"
"""Returns the hash of the policy that an engine should have; None where that is not known yet."""


def by_engine(sources: Iterable[LiveSource]) -> dict[EngineKey, list[LiveSource]]:
    """Group sources by their engine, in the order of process and rank."""
    engines: defaultdict[EngineKey, list[LiveSource]] = defaultdict(list)
    for live in sorted(sources, key=lambda live: (live.source.process, live.source.rank, live.source.epoch)):
        engines[live.source.key].append(live)
    return dict(sorted(engines.items()))


def add_snapshots(sheet: GaugeSet, sources: Iterable[LiveSource], wanted: Wanted | None) -> None:
    """Put the gauges of all connected sources into *sheet*.

    Args:
        wanted: hash of the policy that an engine should have, None where that is not known yet; without it, and
            for such an engine, there is no `from_snapshots.POLICY_IN_SYNC`.

    """
    engines = by_engine(sources)
    servers = engines_by_server(
        key for key, lives in engines.items() if any(live.connected for live in lives)
    )
    for key, lives in engines.items():
        snapshots = [
            (live.source, live.snapshot) for live in lives if live.connected and live.snapshot is not None
        ]
        for source, snapshot in snapshots:
            _add_flows(sheet, key, snapshot)
            add_facts(sheet, key, source, snapshot, servers.get(key.server, 0))
            add_hooks(sheet, key, snapshot)
            add_policy(sheet, key, snapshot, wanted)
        said = [live.snapshot for live in lives if live.connected]
        add_pause(sheet, key, said)
        add_rotation(sheet, key, said)
        _add_peers(sheet, key, [snapshot for _, snapshot in snapshots])
        for live in lives:
            _add_emitter(sheet, key, live)


def _add_flows(sheet: GaugeSet, key: EngineKey, snapshot: Snapshot) -> None:
    for flow in snapshot.in_flight:
        labels = (label(common.Channel, flow.channel), peer_of(flow.peer))
        sheet.merge(add, from_snapshots.TRANSFERS_IN_FLIGHT, key, flow.count, *labels)
        if flow.count and flow.oldest_start_time_unix_nano:
            sheet.merge(
                MIN, from_snapshots.OLDEST_TRANSFER, key, flow.oldest_start_time_unix_nano / NANOS, *labels
            )
    for deferred in snapshot.deferred:
        labels = (label(common.DeferralReason, deferred.reason), peer_of(deferred.peer))
        sheet.merge(add, from_snapshots.DEFERRED_REQUESTS, key, deferred.count, *labels)
        if deferred.count and deferred.oldest_start_time_unix_nano:
            sheet.merge(
                MIN,
                from_snapshots.OLDEST_DEFERRAL,
                key,
                deferred.oldest_start_time_unix_nano / NANOS,
                *labels,
            )
    if snapshot.HasField("leases"):
        sheet.merge(MAX, from_snapshots.SEND_LEASES, key, snapshot.leases.count)
        sheet.merge(MAX, from_snapshots.SEND_LEASE_BLOCKS, key, snapshot.leases.blocks)
    _add_held(sheet, key, snapshot)
    if snapshot.HasField("queue"):
        _add_queue(sheet, key, snapshot.queue)


def _add_queue(sheet: GaugeSet, key: EngineKey, queue: SchedulerQueue) -> None:
    """Put what a scheduler has; only EngineCore tells. What several under one name have is summed, their newest step counts."""
    sheet.merge(add, from_snapshots.RUNNING_REQUESTS, key, queue.running)
    sheet.merge(add, from_snapshots.FREE_BLOCKS, key, queue.free_blocks)
    for row in queue.waiting:
        reason = label(QueueReason, row.reason)
        sheet.merge(add, from_snapshots.WAITING_REQUESTS, key, row.count, reason)
        if row.count and row.oldest_start_time_unix_nano:
            sheet.merge(
                MIN, from_snapshots.OLDEST_WAITING, key, row.oldest_start_time_unix_nano / NANOS, reason
            )
    if queue.last_step_time_unix_nano:
        sheet.merge(MAX, from_snapshots.LAST_STEP, key, queue.last_step_time_unix_nano / NANOS)


def _add_held(sheet: GaugeSet, key: EngineKey, snapshot: Snapshot) -> None:
    rows = [
        (label(BlockHolder, row.holder), peer_of(row.peer), row.blocks, row.oldest_start_time_unix_nano)
        for row in snapshot.held
    ]
    if snapshot.HasField("leases"):
        leases = snapshot.leases
        rows.append(("lease", UNKNOWN, leases.blocks, leases.oldest_start_time_unix_nano))
    for holder, peer, blocks, oldest in rows:
        sheet.merge(MAX, from_snapshots.HELD_BLOCKS, key, blocks, holder, peer)
        if blocks and oldest:
            sheet.merge(MIN, from_snapshots.OLDEST_HELD, key, oldest / NANOS, holder, peer)


def _add_emitter(sheet: GaugeSet, key: EngineKey, live: LiveSource) -> None:
    if not live.connected or live.snapshot is None or not live.snapshot.HasField("emitter"):
        return
    emitter = live.snapshot.emitter
    sheet.merge(add, from_snapshots.PENDING_ENTRIES, key, emitter.pending_entries)
    sheet.merge(add, from_snapshots.UNACKNOWLEDGED_BYTES, key, emitter.unacknowledged_bytes)
    if live.unaccounted is not None:
        sheet.merge(add, from_snapshots.UNACCOUNTED_ENTRIES, key, abs(live.unaccounted))


_STATES = (
    events.QUARANTINE_STATE_CLOSED,
    events.QUARANTINE_STATE_OPEN,
    events.QUARANTINE_STATE_HALF_OPEN,
)


def _add_peers(sheet: GaugeSet, key: EngineKey, snapshots: Sequence[Snapshot]) -> None:
    invalid: set[str] = set()
    for snapshot in snapshots:
        for status in snapshot.peers:
            _add_peer(sheet, key, status)
            if status.upstream_invalid:
                invalid.add(peer_of(status.peer))
    if snapshots and key.engine:
        sheet.set(from_snapshots.UPSTREAM_INVALID_PEERS, key, len(invalid))


def _add_peer(sheet: GaugeSet, key: EngineKey, status: PeerStatus) -> None:
    peer = peer_of(status.peer)
    if status.peer.engine_id:
        sheet.set(from_snapshots.PEER_INFO, key, 1, peer, status.peer.engine_id)
    if status.HasField("clock_offset_nano"):
        sheet.set(from_snapshots.PEER_CLOCK_OFFSET, key, status.clock_offset_nano / NANOS, peer)
    if status.quarantine != events.QUARANTINE_STATE_UNSPECIFIED:
        for state in _STATES:
            sheet.set(
                from_snapshots.PEER_QUARANTINE,
                key,
                status.quarantine == state,
                peer,
                label(events.QuarantineState, state),
            )
