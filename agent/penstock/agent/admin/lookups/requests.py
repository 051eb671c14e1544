"""Requests: their entries in the log, how long they take, the slowest, and those deferred."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.bounded_scan import MAX_EVENTS, EventScan
from penstock.agent.admin.lookups.messages import MAX_UINT32, clamp_unsigned, key_message, timestamp_message
from penstock.agent.aio import ThreadYield
from penstock.agent.batch import gate_times
from penstock.agent.journal import MAX_INTEGER
from penstock.agent.traces.query import remote_request_id
from penstock.agent.traces.spans import RequestKey, request_entries, without_batch
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.agent.admin.lookups.bounded_scan import FoundEvent
    from penstock.agent.journal import ReadBudget, Reader
    from penstock.agent.model import Source
    from penstock.agent.sources import LiveSource
    from penstock.agent.traces.spans import Entry, RequestFacts
    from penstock.proto.v1.admin_pb2 import RequestSummary
    from penstock.proto.v1.common_pb2 import Peer
    from penstock.proto.v1.events_pb2 import Event, RequestClosed
    from penstock.proto.v1.snapshot_pb2 import Snapshot

# Newest entries read of one request.
_MAX_ENTRIES = 512
_BATCHES_KEPT = 16


DEFAULT_SLOW = "ttft"

# They say how long a request takes; the newest come first.
_KINDS = ("request_closed", "deferral_end", "deferral_start")

# A deferral's event and its snapshot differ by less than this.
_SLACK_NANO = 1_000_000_000


class RequestLog:
    """The log by request, within a read budget, up to the batch *until*."""

    def __init__(self, reader: Reader, allowance: ReadBudget, until: int = MAX_INTEGER) -> None:
        self._reader = reader
        self._before = until + 1
        self._allowance = allowance
        self._batches: dict[int, dict[RequestKey, list[Entry]]] = {}
        self._lost: dict[int, bool] = {}

    def entries(self, key: RequestKey) -> list[Entry]:
        """Return the newest entries of one request, at most 512."""
        found: list[Entry] = []
        for number in self._reader.request_batch_ids(key.request_id, self._before):
            if len(found) >= _MAX_ENTRIES or self._allowance.ends:
                break
            found += map(without_batch, self._batch(number).get(key, ()))
        return found

    def readers(self, request_id: str) -> list[RequestKey]:
        """Return the requests that name *request_id* as the other side's: those that were to read its blocks."""
        found: dict[RequestKey, None] = {}
        for number in self._reader.request_batch_ids(request_id, self._before):
            if self._allowance.ends:
                break
            for key, entries in self._batch(number).items():
                if key.request_id != request_id and any(
                    remote_request_id(entry) == request_id for entry in entries
                ):
                    found[key] = None
        return list(found)

    @property
    def cut(self) -> bool:
        """Whether there was more to read than the budget allows."""
        return self._allowance.cut

    def lost(self, epoch: int) -> bool:
        """Return whether a source is gone, so that its open requests will never close."""
        if epoch not in self._lost:
            self._lost[epoch] = not self._reader.is_open(epoch)
        return self._lost[epoch]

    def _batch(self, number: int) -> dict[RequestKey, list[Entry]]:
        entries = self._batches.pop(number, None)
        if entries is None:
            entries = self._read(number)
        # Consecutive requests share few batches: keep the last used ones.
        self._batches[number] = entries
        if len(self._batches) > _BATCHES_KEPT:
            del self._batches[next(iter(self._batches))]
        return entries

    def _read(self, number: int) -> dict[RequestKey, list[Entry]]:
        entries: dict[RequestKey, list[Entry]] = {}
        logged = self._reader.batch(number)
        if logged is not None:
            self._allowance.consume(len(logged.body))
            source = self._reader.source(logged.epoch)
            if source is not None:
                for key, entry in request_entries(source, self._reader.parse(logged)):
                    entries.setdefault(key, []).append(entry)
        return entries


def since_nano(item: RequestSummary) -> int:
    """Return when a request began."""
    return item.since.ToNanoseconds()


def slowness_nano(item: RequestSummary, by: str) -> int:
    """Return the duration that *by* names: ``duration``, ``wait``, or ``ttft``.

    Without a first token its time is the whole duration, or the wait so far.
    """
    if by == "wait":
        return item.wait.ToNanoseconds()
    whole = item.duration.ToNanoseconds() or item.wait.ToNanoseconds()
    return whole if by == "duration" else item.time_to_first_token.ToNanoseconds() or whole


ORDERS: dict[str, Callable[[RequestSummary], int]] = {
    "age": since_nano,
    "time": lambda item: -since_nano(item),
    "duration": lambda item: -slowness_nano(item, "duration"),
    "wait": lambda item: -slowness_nano(item, "wait"),
    "ttft": lambda item: -slowness_nano(item, "ttft"),
}
"""The sort orders of requests, as keys."""


def first_token_nano(closing: RequestClosed) -> int:
    """Return the time from arrival to the first token; 0 if there was none."""
    if not (closing.arrival_time_unix_nano and closing.first_token_time_unix_nano):
        return 0
    return max(0, closing.first_token_time_unix_nano - closing.arrival_time_unix_nano)


def add_durations(summary: RequestSummary, facts: RequestFacts, now: int, *, lost: bool) -> None:
    """Set the durations of a request; an open one lasts until *now*, nanoseconds.

    Args:
        summary: of the request.
        facts: what the log says about it.
        now: the present.
        lost: its engine is gone; it ends with its last entry.

    """
    closing = facts.closing
    if closing is None and not lost:
        # Its open deferrals, too, last until now.
        facts = replace(facts, lost_unix_nano=max(now, facts.end_unix_nano))
    _set(summary, "duration", facts.end_unix_nano - facts.start_unix_nano)
    _set(summary, "wait", facts.deferred_nano)
    if closing is not None:
        _set(summary, "time_to_first_token", first_token_nano(closing))
        times = gate_times(closing)
        for gate, nano in times.largest_first() if times is not None else ():
            summary.gates.add(gate=gate).duration.FromNanoseconds(nano)


def _set(summary: RequestSummary, name: str, nano: int) -> None:
    if nano > 0:
        getattr(summary, name).FromNanoseconds(nano)


@dataclass(slots=True)
class _Candidate:
    found: FoundEvent
    whole: int = 0
    wait: int = 0
    first_token: int = 0
    closed: bool = False
    ended: int = 0

    def slowness(self, by: str) -> int:
        if by == "wait":
            return self.wait
        whole = self.whole or self.wait
        return whole if by == "duration" else self.first_token or whole


def slowest_requests(
    reader: Reader,
    wanted: Callable[[FoundEvent], bool],
    *,
    by: str,
    since_unix_nano: int,
    now: int,
    limit: int,
) -> tuple[dict[RequestKey, FoundEvent], bool]:
    """Return an event of each of the slowest requests, and whether older events were not looked at.

    Args:
        reader: of the journal.
        wanted: which events count.
        by: ``duration``, ``wait`` or ``ttft``.
        since_unix_nano: only events that are newer.
        now: until when open deferrals last, nanoseconds.
        limit: maximum number of requests.

    """
    scan = EventScan.newest(reader, kinds=_KINDS, since_unix_nano=since_unix_nano)
    candidates: dict[RequestKey, _Candidate] = {}
    # What waited in an engine that is gone waits no longer.
    is_open = cache(reader.is_open)
    for found in scan:
        if found.event.request_id and wanted(found):
            key = RequestKey(found.source.key.server, found.event.request_id)
            until = now if is_open(found.source.epoch) else 0
            _add(candidates.setdefault(key, _Candidate(found)), found, until)
    slowest = heapq.nlargest(limit, candidates.items(), key=lambda item: item[1].slowness(by))
    return {key: candidate.found for key, candidate in slowest}, scan.cut or len(candidates) > limit


def _add(candidate: _Candidate, found: FoundEvent, until: int) -> None:
    event = found.event
    kind = event.WhichOneof("body")
    if kind == "request_closed":
        candidate.closed = True
        closing = event.request_closed
        if closing.arrival_time_unix_nano:
            candidate.whole = max(0, event.time_unix_nano - closing.arrival_time_unix_nano)
            candidate.first_token = first_token_nano(closing)
    elif kind == "deferral_end":
        candidate.ended += 1
        start = event.deferral_end.start_time_unix_nano
        candidate.wait += max(0, event.time_unix_nano - start) if start else 0
    elif candidate.ended:
        # The start of a deferral that has ended.
        candidate.ended -= 1
    elif not candidate.closed:
        candidate.wait += max(0, until - event.time_unix_nano)


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
    left, let_go, waiting = MAX_EVENTS, ThreadYield(), reader.waiting_epochs()
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
