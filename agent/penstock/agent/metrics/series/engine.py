"""The series of one engine, by metric: exact state under a cap of label sets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.agent.metrics.catalogue import OTHER, from_log
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence

    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.metrics.series.bulk_updates import BulkUpdate

CAP: Final = 1000
"""Label sets of its own that a metric may have in an engine."""

IDLE_NANO: Final = 15 * 60 * NANOS
"""Idle for this long, a label set gives way to a new one."""

TOTAL: Final = 50_000
"""Label sets that all metrics of all engines may have together, parked ones included."""

RESERVED: Final = 8
"""Label sets of its own that a metric of an engine gets although that total is used up, by another's flood."""

MAX_LABEL: Final = 260
"""Characters of a label: a host's name and its port have no more. Longer ones are errors or attacks."""

_PARKED_PER_LIVE = 4
_PEER_LABELS = frozenset({"peer", "caused_by_peer"})


class SeriesBudget:
    """How many label sets there may still be, over many series; below 0 by what was reserved."""

    def __init__(self, left: int = TOTAL) -> None:
        self.left = left


@dataclass(slots=True)
class SeriesPoint:
    """One series.

    Attributes:
        touched: time of its newest entry, nanoseconds.
        total: a counter's value, a histogram's sum; state units.
        counts: a histogram's observations by bucket, not cumulative, infinity last; empty for a counter.

    """

    touched: int
    total: int
    counts: list[int]


class Row(NamedTuple):
    """A copy of one series; ``counts`` and ``touched`` as in `SeriesPoint`."""

    labels: tuple[str, ...]
    total: int
    counts: tuple[int, ...]
    touched: int = 0


class Series:
    """All series of one metric of one engine.

    Time is that of the entries, so a replay of the log gives the same state. At the cap, label sets idle for
    15 minutes are parked: not exposed, kept so that they resume where they were, at most four times the cap,
    the first parked forgotten first (one that was forgotten begins at 0, which Prometheus takes for a reset).
    If none is idle, or if *room* is used up, free text in the new label set becomes ``__other__``; enum words stay,
    so there are at most as many of those as enums have combinations.
    """

    def __init__(self, metric: Metric, cap: int = CAP, room: SeriesBudget | None = None) -> None:
        self.metric = metric
        self._room = room or SeriesBudget()
        self.folded = 0
        self.evicted = 0
        self.resumed = 0
        self._cap = cap
        self._live: dict[tuple[str, ...], SeriesPoint] = {}
        self._other: dict[tuple[str, ...], SeriesPoint] = {}
        self._parked: dict[tuple[str, ...], SeriesPoint] = {}
        # Nothing can be idle before this time: keeps a flood of new label sets from scanning each time.
        self._none_idle_before = 0
        self._peers = tuple(index for index, name in enumerate(metric.labels) if name in _PEER_LABELS)

    def has(self, labels: tuple[str, ...]) -> bool:
        """Return whether the label set has a series that is exposed under its own name: then additions to it commute."""
        return labels in self._live

    def add(self, labels: tuple[str, ...], value: int, time: int) -> None:
        """Add *value* to a counter, or observe it in a histogram."""
        point = self._point(labels, time)
        point.total += value
        if point.counts:
            point.counts[bisect_left(self.metric.buckets, value)] += 1

    def observe(self, labels: tuple[str, ...], values: list[int], time: int) -> None:
        """Observe many values at once in a histogram."""
        point = self._point(labels, time)
        point.total += sum(values)
        values = sorted(values)
        below = 0
        for index, bound in enumerate(self.metric.buckets):
            up_to = bisect_right(values, bound, below)
            point.counts[index] += up_to - below
            below = up_to
        point.counts[-1] += len(values) - below

    def rows(self, *, idle: bool = False) -> list[Row]:
        """Return copies of the exposed series; with *idle* also of the parked ones."""
        return [
            Row(labels, point.total, tuple(point.counts), point.touched)
            for series in (self._live, self._other, *([self._parked] if idle else []))
            for labels, point in series.items()
        ]

    def rows_of_peers(self, peers: Container[str]) -> list[Row]:
        """Return copies of the exposed series that are about one of *peers*."""
        return [
            Row(labels, point.total, tuple(point.counts), point.touched)
            for series in (self._live, self._other)
            for labels, point in series.items()
            if any(labels[index] in peers for index in self._peers)
        ]

    def note_peers(self, newest: dict[str, int]) -> None:
        """Add the peers of the exposed series to *newest*: the time of each one's newest entry, nanoseconds."""
        for index in self._peers:
            for series in (self._live, self._other):
                for labels, point in series.items():
                    peer = labels[index]
                    if point.touched >= newest.get(peer, 0):
                        newest[peer] = point.touched

    def knows_peer(self, peer: str) -> bool:
        """Return whether an exposed series is about *peer*."""
        return any(self._is_about(labels, peer) for series in (self._live, self._other) for labels in series)

    def forget_peer(self, peer: str) -> None:
        """Drop what is about *peer*; it begins at 0 if it returns."""
        for series in (self._live, self._other, self._parked):
            gone = [labels for labels in series if self._is_about(labels, peer)]
            for labels in gone:
                del series[labels]
            self._room.left += len(gone)

    def clear(self) -> None:
        """Drop everything."""
        for series in (self._live, self._other, self._parked):
            self._room.left += len(series)
            series.clear()

    def _is_about(self, labels: tuple[str, ...], peer: str) -> bool:
        return any(labels[index] == peer for index in self._peers)

    def _point(self, labels: tuple[str, ...], time: int) -> SeriesPoint:
        point = self._live.get(labels)
        if point is None:
            point = self._admit(labels, time)
        point.touched = max(point.touched, time)
        return point

    def _admit(self, labels: tuple[str, ...], time: int) -> SeriesPoint:
        if len(self._live) >= self._cap:
            self._park_idle(time)
        series = self._live
        # A client may call a peer __other__: two series of one name would cost the whole scrape.
        if len(series) >= self._cap or not self._has_room(labels) or OTHER in labels or _too_long(labels):
            series = self._other
            labels = self.metric.folded(labels)
            self.folded += 1
        point = series.get(labels)
        if point is None:
            point = self._parked.pop(labels, None)
            self.resumed += point is not None
            point = point or self._new(time)
            series[labels] = point
            # Entries of several sources do not come in the order of time.
            self._none_idle_before = min(self._none_idle_before, time + IDLE_NANO)
        return point

    def _has_room(self, labels: tuple[str, ...]) -> bool:
        return (
            self._room.left > 0
            or not self.metric.free
            or len(self._live) < RESERVED
            or labels in self._parked
        )

    def _new(self, time: int) -> SeriesPoint:
        self._room.left -= 1
        return SeriesPoint(time, 0, [0] * (len(self.metric.buckets) + 1) if self.metric.buckets else [])

    def _park_idle(self, time: int) -> None:
        if time < self._none_idle_before:
            return
        idle = [labels for labels, point in self._live.items() if point.touched <= time - IDLE_NANO]
        for labels in idle:
            self._parked[labels] = self._live.pop(labels)
        self.evicted += len(idle)
        while len(self._parked) > self._cap * _PARKED_PER_LIVE:
            del self._parked[next(iter(self._parked))]
            self._room.left += 1
        oldest = min((point.touched for point in self._live.values()), default=time)
        self._none_idle_before = oldest + IDLE_NANO

    def dump(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "folded": self.folded,
            "evicted": self.evicted,
            "resumed": self.resumed,
            "live": _dump(self._live),
            "other": _dump(self._other),
            "parked": _dump(self._parked),
        }

    @classmethod
    def load(
        cls, metric: Metric, state: dict[str, Any], cap: int = CAP, room: SeriesBudget | None = None
    ) -> Series:
        """Return the series that :meth:`dump` described.

        Raises:
            ValueError: the metric has other labels or buckets now.

        """
        series = cls(metric, cap, room)
        series.folded = state["folded"]
        series.evicted = state["evicted"]
        # A state of 0.1.0 does not have it.
        series.resumed = state.get("resumed", 0)
        series._live = _load(metric, state["live"])
        series._other = _load(metric, state["other"])
        series._parked = _load(metric, state["parked"])
        series._room.left -= len(series._live) + len(series._other) + len(series._parked)
        return series


def _dump(series: dict[tuple[str, ...], SeriesPoint]) -> list[list[Any]]:
    return [[labels, point.touched, point.total, point.counts] for labels, point in series.items()]


def _load(metric: Metric, rows: Iterable[Sequence[Any]]) -> dict[tuple[str, ...], SeriesPoint]:
    buckets = len(metric.buckets) + 1 if metric.buckets else 0
    series = {}
    for labels, touched, total, counts in rows:
        if len(labels) != len(metric.labels) or len(counts) != buckets:
            raise ValueError(f"{metric.name} has other labels or buckets now")
        series[tuple(labels)] = SeriesPoint(touched, total, list(counts))
    return series


def _too_long(labels: tuple[str, ...]) -> bool:
    return any(len(label) > MAX_LABEL for label in labels)


class EngineSeries:
    """The state of one engine.

    Attributes:
        time: that of its newest entry, nanoseconds; 0 if none had one.
        series: by metric.

    """

    def __init__(self, cap: int, room: SeriesBudget) -> None:
        self.time = 0
        self._room = room
        self.series: dict[Metric, Series] = {}
        self._cap = cap

    def of(self, metric: Metric) -> Series:
        """Return the series of *metric*, new ones if there are none."""
        series = self.series.get(metric)
        if series is None:
            series = self.series[metric] = Series(metric, self._cap, self._room)
        return series

    def add(self, metric: Metric, labels: tuple[str, ...], value: int, time: int) -> None:
        """Add *value* to a counter, or observe it in a histogram."""
        self.of(metric).add(labels, value, time)

    def add_known(self, bulks: Collection[BulkUpdate]) -> bool:
        """Add *bulks* if all their label sets have a series already; False if nothing was added."""
        if not all(self._has(bulk.metric, bulk.labels) for bulk in bulks):
            return False
        self.add_bulks(bulks)
        return True

    def _has(self, metric: Metric, labels: tuple[str, ...]) -> bool:
        series = self.series.get(metric)
        return series is not None and series.has(labels)

    def add_bulks(self, bulks: Iterable[BulkUpdate]) -> None:
        """Add *bulks*."""
        for metric, labels, amount, values, time in bulks:
            if values:
                self.of(metric).observe(labels, values, time)
            else:
                self.of(metric).add(labels, amount, time)

    def knows_peer(self, peer: str) -> bool:
        """Return whether a series is about *peer*."""
        return any(series.knows_peer(peer) for series in self.series.values())

    def rows_of(self, metrics: Collection[Metric], *, idle: bool = False) -> dict[Metric, list[Row]]:
        """Return copies of the series of *metrics*; with *idle* also of those that are not exposed."""
        return {metric: series.rows(idle=idle) for metric, series in self.series.items() if metric in metrics}

    def rows_of_peers(self, metrics: Collection[Metric], peers: Container[str]) -> dict[Metric, list[Row]]:
        """Return copies of the series of *metrics* that are about one of *peers*."""
        return {
            metric: series.rows_of_peers(peers) for metric, series in self.series.items() if metric in metrics
        }

    def newest_of_peers(self, metrics: Collection[Metric]) -> dict[str, int]:
        """Return the peers that *metrics* name, with the time of each one's newest entry, nanoseconds."""
        newest: dict[str, int] = {}
        for metric, series in self.series.items():
            if metric in metrics:
                series.note_peers(newest)
        return newest

    def rows(self) -> dict[Metric, list[Row]]:
        """Return copies of all series, and of what became of label sets at the cap."""
        rows = {metric: series.rows() for metric, series in self.series.items()}
        for about, counts in (
            (
                from_log.LABEL_SETS_FOLDED,
                {metric: each.folded for metric, each in sorted_series(self.series)},
            ),
            (
                from_log.LABEL_SETS_EVICTED,
                {metric: each.evicted for metric, each in sorted_series(self.series)},
            ),
            (
                from_log.LABEL_SETS_RESUMED,
                {metric: each.resumed for metric, each in sorted_series(self.series)},
            ),
        ):
            rows[about] = [Row((metric.name,), count, ()) for metric, count in counts.items() if count]
        return rows


def sorted_series(series: dict[Metric, Series]) -> list[tuple[Metric, Series]]:
    """Return the items by name, so that equal states have equal dumps."""
    return sorted(series.items(), key=lambda item: item[0].name)
