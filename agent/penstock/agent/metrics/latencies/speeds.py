"""How fast transfers with each peer and rank are, now and usually, by size: bytes/s of single transfers.

Small transfers are slow by nature, so speeds are compared between transfers of one size class only.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.agent import limits
from penstock.agent.metrics.catalogue import OTHER
from penstock.agent.metrics.latencies.time_slots import DAY, FINEST_NANO, QUARTER, TimeSlots
from penstock.agent.metrics.series import IDLE_NANO, MAX_LABEL, UNKNOWN
from penstock.agent.model import EngineKey
from penstock.proto.names import NANOS
from penstock.proto.v1.common_pb2 import TRANSFER_RESULT_OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.agent.batch import BatchColumns

MAX_PAIRS: Final = 512
"""Ranks with their peers, of all engines together; a busy one takes 50 KiB."""

SIZE_BOUNDS: Final = (1 << 20, 16 << 20)
"""A transfer of fewer bytes than the first is in class 0, and so on."""

SIZE_CLASSES: Final = ("below 1 MiB", "1 to 16 MiB", "16 MiB and more")
# Not engines: where a connector offloads to, and what has no name.
_NO_ENGINES: Final = frozenset({"host", "disk", UNKNOWN})

_FIRST, _PER_OCTAVE, _OCTAVES = 1 << 17, 2, 24
SPEED_BOUNDS: Final = tuple(
    round(_FIRST * 2 ** (step / _PER_OCTAVE)) for step in range(_OCTAVES * _PER_OCTAVE + 1)
)
"""Upper bounds of the buckets, bytes/s: 128 KiB/s to 2 TiB/s, each 41 % above the one below."""

_SPEEDS: Final = len(SPEED_BOUNDS) + 1
_SIZE: Final = _SPEEDS * len(SIZE_CLASSES)
_AHEAD_NANO: Final = 5 * 60 * NANOS
_MINUTE, _QUARTER = 60 * NANOS, 15 * 60 * NANOS
# Transfers of a batch that are looked at; the hot path takes in 500,000 entries a second.
_SAMPLE: Final = 16


class PairKey(NamedTuple):
    """One rank of an engine with one of its peers."""

    engine: EngineKey
    channel: int
    peer: str
    rank: int


@dataclass(frozen=True, slots=True)
class Speed:
    """What one rank has of one peer; bytes/s are medians, until the engine saw the ends of the transfers: they are at least that.

    Attributes:
        now: of the last minute, or of the last 15 where that has too few.
        count: transfers of them.
        usual: of the transfers of the same size class before, 24 hours at most; 0 without any.
        usual_count: transfers of them.
        size_class: index into `SIZE_CLASSES`, of what is compared.
        ratio: now over usual; None where either has too few transfers.
        siblings_ratio: now over the median of the engine's other peers, same channel and size class; None likewise, with fewer
            than `OTHER_PEERS` of them, and for what is no engine.
        most: as *now*, had each transfer ended just after the look before; None if an engine does not tell of its looks.

    """

    now: float
    count: int
    usual: float
    usual_count: int
    size_class: int
    ratio: float | None = None
    siblings_ratio: float | None = None
    most: float | None = None

    @property
    def loose(self) -> bool:
        """Whether the looks are so far apart that *now* is little more than a lower bound."""
        return self.most is not None and limits.is_loose(self.now, self.most)


class PairSpeeds:
    """The speeds of all pairs of all engines; not thread-safe.

    At most *cap* ranks with peers: a new one replaces those idle for 15 minutes; if there is none, it has no speeds.
    """

    def __init__(self, cap: int = MAX_PAIRS, clock: Callable[[], int] = time.time_ns) -> None:
        self._cap = cap
        self._clock = clock
        self._slots: dict[PairKey, TimeSlots] = {}
        # Speeds had each transfer ended just after the look before, of engines that tell of their looks.
        self._most: dict[PairKey, TimeSlots] = {}
        # Nothing can be idle before this time: keeps a flood of new peers from scanning each time.
        self._none_idle_before = 0

    def apply(self, key: EngineKey, contents: BatchColumns) -> None:
        """Count a batch of an engine. It has passed the limits of the ingest."""
        latest, text = self._clock() + _AHEAD_NANO, contents.strings
        for (channel, index, rank, slot), (counts, most) in _counted(contents, latest).items():
            when, pair = slot * FINEST_NANO, PairKey(key, channel, text[index] or UNKNOWN, rank)
            found = self._pair(pair, when)
            if found is not None:
                found.add(when, counts)
                if most:
                    slots = self._most.get(pair)
                    if slots is None:
                        slots = self._most[pair] = TimeSlots(_SIZE, QUARTER)
                    slots.add(when, most)

    def speeds(self, key: EngineKey, now: int) -> dict[PairKey, Speed]:
        """Return what moved in the 15 minutes before *now*, nanoseconds by an engine's clock; a slow pair `at_best`."""
        found = {pair: self.speed(pair, now) for pair in self.pairs(key, now)}
        return {pair: at_best(speed) for pair, speed in with_siblings(found).items()}

    def pairs(self, key: EngineKey, now: int) -> list[PairKey]:
        """Return the pairs of an engine that have moved something in the 15 minutes before *now*."""
        return [
            pair
            for pair, slots in self._slots.items()
            if pair.engine == key and slots.newest > now - _QUARTER
        ]

    def speed(self, pair: PairKey, now: int) -> Speed | None:
        """Return the speed of one pair without its siblings; None if nothing has moved, or it is forgotten."""
        slots = self._slots.get(pair)
        if slots is None:
            return None
        minute, quarter = now - _MINUTE, now - _QUARTER
        most = self._most.get(pair)
        return compared_speed(
            slots.split(minute),
            slots.split(quarter),
            (most.split(minute)[1], most.split(quarter)[1]) if most is not None else None,
        )

    def forget(self, key: EngineKey, peer: str | None = None) -> None:
        """Drop a peer of an engine; all of its peers without one."""
        for each in [each for each in self._slots if each.engine == key and peer in {None, each.peer}]:
            self._drop(each)

    def _drop(self, pair: PairKey) -> None:
        del self._slots[pair]
        self._most.pop(pair, None)

    def _pair(self, key: PairKey, when: int) -> TimeSlots | None:
        found = self._slots.get(key)
        if found is None:
            if len(self._slots) >= self._cap:
                self._drop_idle(when)
            if len(self._slots) >= self._cap or key.peer == OTHER or len(key.peer) > MAX_LABEL:
                return None
            found = self._slots[key] = TimeSlots(_SIZE, DAY)
            self._none_idle_before = min(self._none_idle_before, when + IDLE_NANO)
        return found

    def _drop_idle(self, now: int) -> None:
        if now < self._none_idle_before:
            return
        for each in [each for each, slots in self._slots.items() if slots.newest <= now - IDLE_NANO]:
            self._drop(each)
        oldest = min((slots.newest for slots in self._slots.values()), default=now)
        self._none_idle_before = oldest + IDLE_NANO

    def dump(self) -> Iterator[Any]:
        """Yield the state for JSON, a row for each pair."""
        for key, slots in sorted(self._slots.items(), key=lambda item: item[0]):
            most = self._most.get(key)
            yield [*key, slots.dump(), most.dump() if most is not None else None]

    def load(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take over what :meth:`dump` returned.

        Raises:
            ValueError, TypeError, LookupError, OverflowError: it is of another shape; nothing has changed.

        """
        slots, most = {}, {}
        for engine, channel, peer, rank, kept, *best in rows:
            pair = PairKey(EngineKey(*engine), channel, peer, rank)
            slots[pair] = TimeSlots.load(_SIZE, kept, DAY)
            # Absent in what an older agent wrote.
            if best and best[0] is not None:
                most[pair] = TimeSlots.load(_SIZE, best[0], QUARTER)
        self._slots, self._most = slots, most


def compared_speed(
    minute: tuple[Sequence[int], Sequence[int]],
    quarter: tuple[Sequence[int], Sequence[int]],
    most: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Speed | None:
    """Return the speed of one pair, of the largest size class that can be compared; None if nothing has moved.

    Args:
        minute: counts before the last minute, and of it.
        quarter: counts before the last 15 minutes, and of them.
        most: counts of the last minute and of the last 15, had each transfer ended just after the look before.

    """
    best: Speed | None = None
    for size_class in reversed(range(len(SIZE_CLASSES))):
        (before, present), newest = (_of(counts, size_class) for counts in minute), 0
        if sum(present) < limits.MEDIAN_COUNT:
            (before, present), newest = (_of(counts, size_class) for counts in quarter), 1
        if not sum(present):
            continue
        speed = _speed(present, before, size_class, _of(most[newest], size_class) if most is not None else ())
        if speed.ratio is not None:
            return speed
        if best is None or speed.count > best.count:
            best = speed
    return best


def _of(counts: Sequence[int], size_class: int) -> Sequence[int]:
    return counts[size_class * _SPEEDS : (size_class + 1) * _SPEEDS]


def _speed(present: Sequence[int], before: Sequence[int], size_class: int, most: Sequence[int]) -> Speed:
    count, usual_count = sum(present), sum(before)
    now = median(present)
    usual = median(before) if usual_count else 0.0
    known = count >= limits.MEDIAN_COUNT and usual_count >= limits.USUAL_COUNT
    ratio = now / usual if known and usual else None
    # Of some transfers the looks are not known if an engine was older a while ago.
    best = max(now, median(most)) if sum(most) == count else None
    return Speed(now, count, usual, usual_count, size_class, ratio, most=best)


def with_siblings(each: Mapping[PairKey, Speed | None]) -> dict[PairKey, Speed]:
    """Return the speeds of one engine that there are, with each compared to the engine's other peers."""
    speeds = {key: speed for key, speed in each.items() if speed is not None}
    found: dict[PairKey, Speed] = {}
    for key, speed in speeds.items():
        middle = _siblings_median(key, speed, speeds)
        found[key] = replace(speed, siblings_ratio=speed.now / middle if middle else None)
    return found


def _siblings_median(key: PairKey, speed: Speed, speeds: Mapping[PairKey, Speed]) -> float | None:
    """Return the median of the engine's other peers; None if too few of them, or of their transfers, can be compared."""
    if key.peer in _NO_ENGINES or speed.count < limits.MEDIAN_COUNT:
        return None
    others = [
        (other.now, there.peer)
        for there, other in speeds.items()
        if there.channel == key.channel
        and there.peer not in {key.peer, *_NO_ENGINES}
        and other.size_class == speed.size_class
        and other.count >= limits.MEDIAN_COUNT
    ]
    if len({peer for _, peer in others}) < limits.OTHER_PEERS:
        return None
    return statistics.median(now for now, _ in others)


def is_slow(speed: Speed) -> bool:
    """Return whether one of its ratios is so low that something is wrong, unless its transfers were seen late."""
    ratios = (each for each in (speed.ratio, speed.siblings_ratio) if each is not None)
    return any(each < limits.SLOW_SPEED_RATIO for each in ratios)


def at_best(speed: Speed, took: float = 0.0, look: float = 0.0) -> Speed:
    """Return *speed* with the ratios that it has at best: had each transfer ended just after the look before.

    A speed that is neither slow nor loose is returned as it is. Without the looks of its transfers (older engines):

    Args:
        speed: that is to be judged.
        took: seconds until the end of a transfer was seen, the median; 0 for not known.
        look: seconds between two looks; 0 for not known. Not much shorter than *took*, or one of them not known: whether it is slow
            is not known, and there is no ratio.

    """
    if not is_slow(speed) and not speed.loose:
        return speed
    if speed.most is not None:
        times = speed.most / speed.now if speed.now else 1.0
    else:
        least = took - limits.LOOK_TIMES * look if look and took else 0.0
        if least <= 0:
            return replace(speed, ratio=None, siblings_ratio=None)
        times = took / least
    usual, siblings = (
        None if each is None else max(each, min(1.0, each * times))
        for each in (speed.ratio, speed.siblings_ratio)
    )
    return replace(speed, ratio=usual, siblings_ratio=siblings)


def median(counts: Sequence[int]) -> float:
    """Return the median of bytes/s, between the bounds of its bucket; *counts* are of one size class, not all 0."""
    rank, below = sum(counts) / 2, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low = SPEED_BOUNDS[bucket - 1] if bucket else 0
            high = SPEED_BOUNDS[min(bucket, len(SPEED_BOUNDS) - 1)]
            return low + (high - low) * max(0.0, rank - below) / count
        below += count
    return float(SPEED_BOUNDS[-1])


_Place = tuple[int, int, int, int]
_Counts = tuple[dict[int, int], dict[int, int]]


def _counted(contents: BatchColumns, latest: int) -> dict[_Place, _Counts]:
    """Return how many transfers there are in each bucket, by channel, peer (its place in the table), rank and finest slot of time.

    Once by how long they took until their end was seen, once by how long they took at least; the latter is empty if not known.

    Of more than 16 every n-th is looked at, and counts once: what has not been seen is no evidence. Left out: failed ones, those without bytes or duration, and ends after *latest*.
    """
    found: dict[_Place, _Counts] = {}
    columns = contents.transfers
    if not len(columns):
        return found
    step = len(columns) // _SAMPLE | 1
    for place, size, duration, least in _rows(contents, step, latest):
        first = bisect_right(SIZE_BOUNDS, size) * _SPEEDS
        counts, most = found.setdefault(place, ({}, {}))
        bucket = first + bisect_left(SPEED_BOUNDS, size * NANOS / duration)
        counts[bucket] = counts.get(bucket, 0) + 1
        if least:
            if least != duration:
                bucket = first + bisect_left(SPEED_BOUNDS, size * NANOS / least)
            most[bucket] = most.get(bucket, 0) + 1
    return found


def _rows(contents: BatchColumns, step: int, latest: int) -> Iterator[tuple[_Place, int, int, int]]:
    columns, first = contents.transfers, contents.batch.seq % step
    names = ("channel", "peer", "rank", "end_time_unix_nano", "bytes", "duration_nano", "result")
    least = columns.least_durations()
    leasts = repeat(0) if least is None else least[first::step]
    sample = zip(zip(*(columns[name][first::step] for name in names), strict=True), leasts, strict=False)
    for (channel, peer, rank, end, size, duration, result), shortest in sample:
        if result == TRANSFER_RESULT_OK and size and 0 < duration < end <= latest:
            yield (channel, peer, rank, end // FINEST_NANO), size, duration, shortest
