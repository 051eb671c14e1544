"""The series of one engine, by metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.metrics.catalogue import from_log
from penstock.agent.metrics.series.capped import Row, Series

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable

    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.metrics.series.bulk_updates import BulkUpdate
    from penstock.agent.metrics.series.capped import SeriesBudget


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
