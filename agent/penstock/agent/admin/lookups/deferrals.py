"""Deferred requests: ids from the log, checked against the counts of the engines' snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.bounded_scan import MAX_EVENTS
from penstock.agent.admin.lookups.messages import MAX_UINT32, clamp_unsigned, key_message, timestamp_message
from penstock.agent.aio import LetGo
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.journal import Reader
    from penstock.agent.model import Source
    from penstock.agent.sources import LiveSource
    from penstock.proto.v1.common_pb2 import Peer
    from penstock.proto.v1.events_pb2 import Event
    from penstock.proto.v1.snapshot_pb2 import Snapshot

# A deferral's event and its snapshot differ by less than this.
_SLACK_NANO = 1_000_000_000


def deferred_requests(
    reader: Reader, present: Iterable[LiveSource], peer: str, since_unix_nano: int, limit: int, now: int
) -> admin.ListRequestsResponse:
    """Return the deferred requests of connected sources, longest wait first.

    Args:
        reader: of the journal.
        present: the selected sources; disconnected ones are skipped.
        peer: only requests that wait for it; empty for all.
        since_unix_nano: only deferrals that started then or later.
        limit: maximum number of requests.
        now: until when they wait, nanoseconds.

    """
    response = admin.ListRequestsResponse()
    found: list[tuple[Source, Event, Peer | None]] = []
    left, let_go, waiting = MAX_EVENTS, LetGo(), reader.waiting_epochs()
    for live in present:
        let_go()
        if not live.connected:
            continue
        opened, total = (
            reader.open_deferrals(live.source.epoch, left) if live.source.epoch in waiting else ([], 0)
        )
        left -= len(opened)
        response.truncated |= total > len(opened)
        starts = [item.start for item in opened if not _is_over(item.start, live.snapshot)]
        unnamed = _unnamed(live.snapshot, starts, peer) if total == len(opened) else 0
        response.unnamed_deferred = clamp_unsigned(response.unnamed_deferred + unnamed, MAX_UINT32)
        for start in starts:
            awaited = _awaited(start, live.snapshot)
            if start.time_unix_nano >= since_unix_nano and peer in {"", awaited.address if awaited else ""}:
                found.append((live.source, start, awaited))
    found.sort(key=lambda item: item[1].time_unix_nano)
    response.truncated |= len(found) > limit
    response.requests.extend(_summary(*each, now) for each in found[:limit])
    return response


def _awaited(start: Event, snapshot: Snapshot | None) -> Peer | None:
    """Return the peer of a deferral: from its start event, else from the snapshot if that has only one."""
    body = start.deferral_start
    if body.HasField("peer"):
        return body.peer
    rows = [row for row in snapshot.deferred if row.reason == body.reason] if snapshot is not None else []
    return rows[0].peer if len(rows) == 1 and rows[0].HasField("peer") else None


def _is_over(start: Event, snapshot: Snapshot | None) -> bool:
    """Return whether a deferral is over although its end event was lost: the snapshot has none that old."""
    if snapshot is None or snapshot.time_unix_nano < start.time_unix_nano + _SLACK_NANO:
        return False
    oldest = [
        row.oldest_start_time_unix_nano
        for row in snapshot.deferred
        if row.reason == start.deferral_start.reason
    ]
    return not oldest or min(oldest) > start.time_unix_nano + _SLACK_NANO


def _unnamed(snapshot: Snapshot | None, starts: list[Event], peer: str) -> int:
    """Return the number of deferred requests missing in the log: start events lost or not yet received."""
    if snapshot is None:
        return 0
    counted = sum(row.count for row in snapshot.deferred if peer in {"", row.peer.address})
    named = sum(1 for start in starts if peer in {"", start.deferral_start.peer.address})
    return max(0, counted - named)


def _summary(source: Source, start: Event, peer: Peer | None, now: int) -> admin.RequestSummary:
    summary = admin.RequestSummary(
        key=key_message(source.key),
        request_id=start.request_id,
        peer=peer,
        deferred=start.deferral_start.reason,
        since=timestamp_message(start.time_unix_nano),
    )
    if now > start.time_unix_nano:
        summary.wait.FromNanoseconds(now - start.time_unix_nano)
    return summary
