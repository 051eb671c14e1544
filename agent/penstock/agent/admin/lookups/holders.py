"""KV blocks that no request computes with, from the snapshots of an engine's processes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.messages import clamp_unsigned, key_message, timestamp_message
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.snapshot_pb2 import BLOCK_HOLDER_LEASE, HeldBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.model import EngineKey
    from penstock.proto.v1.snapshot_pb2 import Snapshot


def engine_holders(
    key: EngineKey, snapshots: Iterable[Snapshot], all_blocks: int
) -> list[admin.HolderSummary]:
    """Return who holds blocks of one engine, most blocks first.

    The processes of an engine hold the same requests: as in the metrics, the highest of them counts.

    Args:
        key: the engine.
        snapshots: of its connected processes.
        all_blocks: that the engine has; 0 if not known.

    """
    merged: dict[tuple[int, str], HeldBlocks] = {}
    for snapshot in snapshots:
        for row in _rows(snapshot):
            present = merged.setdefault((row.holder, row.peer.address), row)
            if present is row:
                continue
            present.requests = max(present.requests, row.requests)
            present.blocks = max(present.blocks, row.blocks)
            starts = {present.oldest_start_time_unix_nano, row.oldest_start_time_unix_nano} - {0}
            present.oldest_start_time_unix_nano = min(starts, default=0)
    found = [_summary(key, row, all_blocks) for row in merged.values() if row.blocks or row.requests]
    return sorted(found, key=lambda row: (-row.blocks, row.holder, row.peer.address))


def _rows(snapshot: Snapshot) -> Iterator[HeldBlocks]:
    for row in snapshot.held:
        copy = HeldBlocks()
        copy.CopyFrom(row)
        yield copy
    leases = snapshot.leases
    if leases.count:
        yield HeldBlocks(
            holder=BLOCK_HOLDER_LEASE,
            requests=leases.count,
            blocks=leases.blocks,
            oldest_start_time_unix_nano=leases.oldest_start_time_unix_nano,
        )


def _summary(key: EngineKey, row: HeldBlocks, all_blocks: int) -> admin.HolderSummary:
    summary = admin.HolderSummary(
        key=key_message(key),
        holder=row.holder,
        peer=row.peer,
        requests=row.requests,
        blocks=clamp_unsigned(row.blocks),
        oldest=timestamp_message(row.oldest_start_time_unix_nano),
    )
    if all_blocks:
        summary.share = row.blocks / all_blocks
    return summary
