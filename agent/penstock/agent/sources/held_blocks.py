"""Who keeps KV blocks that no request computes with, as the processes of one engine report it. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.proto.v1 import snapshot_pb2 as snapshots
from penstock.proto.v1.snapshot_pb2 import HeldBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.proto.v1.snapshot_pb2 import Leases, Snapshot

HOLDERS: Final[Mapping[int, str]] = {
    snapshots.BLOCK_HOLDER_LEASE: "leases",
    snapshots.BLOCK_HOLDER_LOAD: "loads under way",
    snapshots.BLOCK_HOLDER_PINNED: "loads that were given up",
    snapshots.BLOCK_HOLDER_ABORTED: "loads of requests that have ended",
    snapshots.BLOCK_HOLDER_SAVE: "saves of requests that have ended",
}
"""The holders, in words."""


def held_rows(snapshot: Snapshot) -> Iterator[HeldBlocks]:
    """Yield what a process reports, its leases among it; the messages are copies."""
    for row in snapshot.held:
        copy = HeldBlocks()
        copy.CopyFrom(row)
        yield copy
    if snapshot.leases.count:
        yield lease_row(snapshot.leases)


def lease_row(leases: Leases) -> HeldBlocks:
    """Return leases as a holder."""
    return HeldBlocks(
        holder=snapshots.BLOCK_HOLDER_LEASE,
        requests=leases.count,
        blocks=leases.blocks,
        oldest_start_time_unix_nano=leases.oldest_start_time_unix_nano,
    )


def blocks_by_holder(rows: Iterable[HeldBlocks]) -> dict[int, int]:
    """Return the blocks of each holder, most first; processes hold the same blocks: by holder and peer the highest counts."""
    merged: defaultdict[tuple[int, str], int] = defaultdict(int)
    for row in rows:
        place = (row.holder, row.peer.address)
        merged[place] = max(merged[place], row.blocks)
    found: defaultdict[int, int] = defaultdict(int)
    for (holder, _), blocks in merged.items():
        found[holder] += blocks
    return {each: found[each] for each in sorted(found, key=lambda each: (-found[each], each)) if found[each]}
