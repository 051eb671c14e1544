"""How long transfers with each peer and waits for it take, in windows of time; how often they fail, and what they move."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import sub
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from penstock.agent.durations import BOUNDS, BUCKETS
from penstock.agent.metrics.catalogue import OTHER
from penstock.agent.metrics.latencies.time_slots import (
    FINEST_NANO,
    QUARTER,
    DurationWindow,
    DurationWindows,
    TimeSlots,
    duration_windows,
)
from penstock.agent.metrics.latencies.traffic import Traffic, TrafficSum, moved
from penstock.agent.metrics.series import IDLE_NANO, MAX_LABEL, UNKNOWN
from penstock.agent.model import EngineKey
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.batch import BatchColumns
    from penstock.agent.metrics.latencies.traffic import Way

MAX_PEERS: Final = 1000
"""Peers of all engines together; a busy one takes 40 KiB."""

# A clock that is further ahead than this would push all that is right out of the windows.
_AHEAD_NANO: Final = 5 * 60 * NANOS
_MINUTE: Final = 60 * NANOS
_QUARTER: Final = 15 * _MINUTE
# Durations of a batch that are looked at; the hot path takes in 500,000 entries a second.
_SAMPLE: Final = 16
_LONG_NANO: Final = NANOS

# Failures beside or after a load, and those of the side that keeps the blocks: they say nothing of the next load.
_NO_LOADS: Final = frozenset(
    {
        common.FAILURE_MODE_NOTIFICATION,
        common.FAILURE_MODE_RELEASE,
        common.FAILURE_MODE_EXPIRED,
        common.FAILURE_MODE_LATE_READ,
    }
)

# Of what is saved of a peer, the last columns as they are without them: no failed load, no durations, nothing moved.
_LATER: Final[tuple[Any, ...]] = (0, 0, (0, ()), (), (0, ()))

# A peer, or its place in a batch's table of strings.
_P = TypeVar("_P", int, str)
PeerKey = tuple[EngineKey, str]


@dataclass(frozen=True, slots=True)
class PeerWindows:
    """What one engine has seen of one peer.

    Attributes:
        transfers: successful ones, from post to completion, which is when the engine saw it.
        least: the same, had each ended just after the look before: of the last 15 minutes, and only of engines that tell of their
            looks.
        waits: deferrals of requests that waited for it.
        failures_last_minute: without collateral ones.
        failures_last_15_minutes: of loads: also without those of the side that keeps the blocks.
        traffic: what was moved in the last 15 minutes, by channel and direction.
        answered: when the newest transfer succeeded, nanoseconds, to the finest slot; 0 for not known.
        unanswered: when the newest attempt to load from it failed, nanoseconds; 0 if a transfer has succeeded since.
        unanswered_since: when the first of the attempts failed since which no transfer has succeeded; 0 likewise.

    """

    transfers: DurationWindows = field(default_factory=DurationWindows)
    waits: DurationWindows = field(default_factory=DurationWindows)
    failures_last_minute: int = 0
    answered: int = 0
    unanswered: int = 0
    unanswered_since: int = 0
    least: DurationWindows = field(default_factory=DurationWindows)
    failures_last_15_minutes: int = 0
    traffic: Mapping[Way, TrafficSum] = field(default_factory=dict)

    def succeeds(self, since: int) -> bool:
        """Return whether transfers succeed: one has since a time, nanoseconds, and not only before the newest failures.

        For a time that is not known (0): in the last minute.
        """
        if self.transfers.last_minute.count and not since:
            return True
        later = bool(since) and self.answered // FINEST_NANO > since // FINEST_NANO
        return later and (not self.unanswered or bool(self.transfers.last_minute.count))


@dataclass(slots=True)
class _Peer:
    """The slots of one peer, and its windows when they were last asked for.

    All edges of the windows are a whole number of the finest slots before now, so what they hold changes only with an
    entry or with the slot that now is in.
    """

    transfers: TimeSlots = field(default_factory=lambda: TimeSlots(BUCKETS))
    waits: TimeSlots = field(default_factory=lambda: TimeSlots(BUCKETS))
    failures: TimeSlots = field(default_factory=lambda: TimeSlots(1))
    failed_loads: TimeSlots = field(default_factory=lambda: TimeSlots(1, QUARTER))
    least: TimeSlots = field(default_factory=lambda: TimeSlots(BUCKETS, QUARTER))
    traffic: Traffic = field(default_factory=Traffic)
    failed_load: int = 0
    failing_since: int = 0
    asked: int = -1
    windows: PeerWindows | None = None

    @property
    def newest(self) -> int:
        return max(self.transfers.newest, self.waits.newest, self.failures.newest, self.traffic.newest)

    @property
    def unanswered(self) -> int:
        return self.failed_load if self._is_unanswered(self.failed_load) else 0

    @property
    def unanswered_since(self) -> int:
        # A transfer that succeeded between the two may have come late.
        return self.failing_since if self._is_unanswered(self.failing_since) else self.unanswered

    def load_failed(self, when: int) -> None:
        """Note that a load failed."""
        self.failed_load = max(self.failed_load, when)
        if self._is_unanswered(when):
            first = self.failing_since if self._is_unanswered(self.failing_since) else when
            self.failing_since = min(first, when)

    def _is_unanswered(self, failed: int) -> bool:
        # Transfers are known to the slot; one of the same slot may be the later.
        return failed // FINEST_NANO > self.transfers.newest // FINEST_NANO


class PeerLatencies:
    """The windows of all peers of all engines; not thread-safe.

    At most *cap* peers: a new one replaces those idle for 15 minutes, by the time of its entry; if there is none, it
    has no windows.
    """

    def __init__(self, cap: int = MAX_PEERS, clock: Callable[[], int] = time.time_ns) -> None:
        self._cap = cap
        self._clock = clock
        self._peers: dict[PeerKey, _Peer] = {}
        # Nothing can be idle before this time: keeps a flood of new peers from scanning each time.
        self._none_idle_before = 0

    def apply(self, key: EngineKey, contents: BatchColumns) -> None:
        """Count a batch of an engine. It has passed the limits of the ingest."""
        latest, first, text = self._clock() + _AHEAD_NANO, contents.batch.seq, contents.strings
        for (index, slot), counts in counted(_transfers(contents), first, latest).items():
            found = self._peer(key, text[index] or UNKNOWN, slot * FINEST_NANO)
            if found is not None:
                found.transfers.add(slot * FINEST_NANO, counts.seen)
                if counts.least:
                    found.least.add(slot * FINEST_NANO, counts.least)
        for (peer, slot), counts in counted(_waits(contents), first, latest).items():
            # A deferral without a peer waits for something else.
            found = self._peer(key, peer, slot * FINEST_NANO) if peer else None
            if found is not None:
                found.waits.add(slot * FINEST_NANO, counts.seen)
        for peer, mode, when in _failures(contents):
            found = self._peer(key, peer, when) if when <= latest else None
            if found is not None:
                found.failures.add(when, {0: 1})
                if mode not in _NO_LOADS:
                    found.failed_loads.add(when, {0: 1})
                    found.load_failed(when)
        self._apply_traffic(key, contents, latest)

    def _apply_traffic(self, key: EngineKey, contents: BatchColumns, latest: int) -> None:
        for (index, slot), ways in moved(contents, latest).items():
            found = self._peer(key, contents.strings[index] or UNKNOWN, slot * FINEST_NANO)
            if found is not None:
                found.traffic.add(slot * FINEST_NANO, ways)

    def windows(self, key: EngineKey, peer: str, now: int) -> PeerWindows | None:
        """Return the windows of a peer before *now*, nanoseconds; None if nothing is known of it."""
        found = self._peers.get((key, peer))
        if found is None:
            return None
        slot = now // FINEST_NANO
        if found.windows is None or found.asked != slot:
            found.asked = slot
            found.windows = PeerWindows(
                duration_windows(found.transfers, now),
                duration_windows(found.waits, now),
                found.failures.sum(now - _MINUTE, now + _AHEAD_NANO)[0],
                found.transfers.newest,
                found.unanswered,
                found.unanswered_since,
                _least_windows(found.least, now),
                found.failed_loads.sum(now - _QUARTER, now + _AHEAD_NANO)[0],
                found.traffic.sum(now - _QUARTER, now + _AHEAD_NANO),
            )
        return found.windows

    def known(self) -> list[PeerKey]:
        """Return the peers that have windows."""
        return list(self._peers)

    def forget(self, key: EngineKey, peer: str | None = None) -> None:
        """Drop a peer of an engine; all of its peers without one."""
        for each in [each for each in self._peers if each[0] == key and peer in {None, each[1]}]:
            del self._peers[each]

    def _peer(self, key: EngineKey, peer: str, when: int) -> _Peer | None:
        found = self._peers.get((key, peer))
        if found is None:
            if len(self._peers) >= self._cap:
                self._drop_idle(when)
            if len(self._peers) >= self._cap or peer == OTHER or len(peer) > MAX_LABEL:
                return None
            found = self._peers[key, peer] = _Peer()
            self._none_idle_before = min(self._none_idle_before, when + IDLE_NANO)
        # An entry follows.
        found.windows = None
        return found

    def _drop_idle(self, now: int) -> None:
        if now < self._none_idle_before:
            return
        for each in [each for each, found in self._peers.items() if found.newest <= now - IDLE_NANO]:
            del self._peers[each]
        oldest = min((found.newest for found in self._peers.values()), default=now)
        self._none_idle_before = oldest + IDLE_NANO

    def dump(self) -> Iterator[Any]:
        """Yield the state for JSON, a row for each peer."""
        for (key, peer), found in sorted(self._peers.items(), key=lambda item: item[0]):
            slots = (found.transfers.dump(), found.waits.dump(), found.failures.dump())
            loads = (found.failed_load, found.failing_since)
            later = (found.least.dump(), found.traffic.dump(), found.failed_loads.dump())
            yield [key, peer, *slots, *loads, *later]

    def load(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take over what :meth:`dump` returned.

        Raises:
            ValueError, TypeError, LookupError, OverflowError: it is of another shape; nothing has changed.

        """
        peers = {}
        for key, name, transfers, waits, failures, *later in rows:
            # An older agent wrote fewer.
            failed, since, least, traffic, failed_loads = [*later, *_LATER[len(later) :]]
            peers[EngineKey(*key), name] = _Peer(
                TimeSlots.load(BUCKETS, transfers),
                TimeSlots.load(BUCKETS, waits),
                TimeSlots.load(1, failures),
                least=TimeSlots.load(BUCKETS, least, QUARTER),
                traffic=Traffic.load(traffic),
                failed_loads=TimeSlots.load(1, failed_loads, QUARTER),
                failed_load=int(failed),
                failing_since=int(since),
            )
        self._peers = peers


def _least_windows(slots: TimeSlots, now: int) -> DurationWindows:
    """Return the windows of what takes part in no comparison with an hour: there is none of it."""
    return replace(duration_windows(slots, now), hour_before=DurationWindow())


class Durations(NamedTuple, Generic[_P]):
    """Durations with their peers and ends, nanoseconds; columns of equal length. *least*: how long they were at least, if known."""

    peers: Sequence[_P]
    durations: Sequence[int]
    ends: Sequence[int]
    least: Sequence[int] | None = None


class DurationCounts(NamedTuple):
    """Numbers by bucket: of durations until the end was seen, and of how long they were at least; the latter empty if not known."""

    seen: dict[int, int]
    least: dict[int, int]


def counted(columns: Durations[_P], first: int, latest: int) -> dict[tuple[_P, int], DurationCounts]:
    """Return how many durations there are in each bucket, by peer and finest slot of time.

    Of more than 16 every n-th counts n-fold, beginning at *first* (modulo n): a batch that full has many alike. Those
    of a second and more all count. Left out: durations that are not known (0) or lead below 1970, and ends after
    *latest*.
    """
    found: dict[tuple[_P, int], DurationCounts] = {}
    size = len(columns.durations)
    if size <= _SAMPLE:
        _count(found, columns, latest)
        return found
    step = size // _SAMPLE | 1
    start, least = first % step, columns.least
    sample = Durations(
        columns.peers[start::step],
        columns.durations[start::step],
        columns.ends[start::step],
        None if least is None else least[start::step],
    )
    _count(found, sample, latest, step, below=_LONG_NANO)
    if max(columns.durations) >= _LONG_NANO:
        _count(found, columns, latest, above=_LONG_NANO)
    return found


def _count(
    found: dict[tuple[_P, int], DurationCounts],
    columns: Durations[_P],
    latest: int,
    number: int = 1,
    above: int = 1,
    below: int = sys.maxsize,
) -> None:
    leasts = repeat(0) if columns.least is None else columns.least
    for peer, duration, end, least in zip(*columns[:3], leasts, strict=False):
        if above <= duration < end <= latest and duration < below:
            bucket = bisect_left(BOUNDS, duration)
            key = peer, end // FINEST_NANO
            counts = found.get(key)
            if counts is None:
                counts = found[key] = DurationCounts({}, {})
            counts.seen[bucket] = counts.seen.get(bucket, 0) + number
            if least:
                if least != duration:
                    bucket = bisect_left(BOUNDS, least)
                counts.least[bucket] = counts.least.get(bucket, 0) + number


def _transfers(contents: BatchColumns) -> Durations[int]:
    columns = contents.transfers
    if not len(columns):
        return Durations((), (), ())
    results = columns["result"]
    durations, ends = columns["duration_nano"], columns["end_time_unix_nano"]
    if results.count(TRANSFER_RESULT_OK) != len(results):
        # A failed transfer has no duration: how long a peer takes must not change with how often it fails.
        durations = [
            duration if result == TRANSFER_RESULT_OK else 0
            for duration, result in zip(durations, results, strict=True)
        ]
    return Durations(columns["peer"], durations, ends, columns.least_durations())


def _waits(contents: BatchColumns) -> Durations[str]:
    group = contents.groups.get("deferral_end")
    if group is None:
        return Durations((), (), ())
    # Without a start a duration leads below 1970.
    durations = list(map(sub, group.times, group.column("start_time_unix_nano")))
    return Durations(group.column("peer.address"), durations, group.times)


def _failures(contents: BatchColumns) -> Iterator[tuple[str, int, int]]:
    group = contents.groups.get("transfer_failure")
    if group is not None:
        rows = zip(group.column("peer.address"), group.column("mode"), group.times, strict=True)
        yield from (
            (peer or UNKNOWN, mode, when)
            for peer, mode, when in rows
            if mode != common.FAILURE_MODE_COLLATERAL
        )
