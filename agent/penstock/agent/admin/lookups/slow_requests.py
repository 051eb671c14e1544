"""The slowest of the newest requests of the log."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from penstock.agent.admin.lookups.bounded_scan import EventScan
from penstock.agent.admin.lookups.request_durations import first_token_nano
from penstock.agent.traces.spans import RequestKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.admin.lookups.bounded_scan import FoundEvent
    from penstock.agent.journal import Reader

# They say how long a request takes; the newest come first.
_KINDS = ("request_closed", "deferral_end", "deferral_start")


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
