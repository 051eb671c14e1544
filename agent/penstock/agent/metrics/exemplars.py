"""One trace to look at, for each series of failures and outcomes and each bucket of a histogram."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.batch import ProbeSample, TransferSample
from penstock.agent.metrics.series import event_updates, transfer_updates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.metrics.series import Update
    from penstock.agent.model import EngineKey, Source
    from penstock.proto.v1.events_pb2 import Event

CAPACITY: Final = 10_000
"""Exemplars that are held; the one noted longest ago goes first."""

_MAX_CHARACTERS = 128
_NAMES = len("trace_id") + len("span_id")


class Exemplar(NamedTuple):
    """A span that belongs to a series.

    Attributes:
        value: what it added to the counter or put into the bucket; state units.

    """

    trace_id: str
    span_id: str
    value: int
    time_unix_nano: int


class _Place(NamedTuple):
    """A series, and its bucket (0 for a counter)."""

    key: EngineKey
    metric: Metric
    labels: tuple[str, ...]
    bucket: int


class Exemplars:
    """The newest exemplar of each place. Thread-safe; in memory only, so a restart begins without any."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._places: OrderedDict[_Place, Exemplar] = OrderedDict()

    def note(
        self, source: Source, entry: Event | TransferSample | ProbeSample, trace_id: str, span_id: str
    ) -> None:
        """Remember the exported span of *entry*; ids in hexadecimal.

        Ids longer than OpenMetrics allows (128 characters with their names) are left out, and so is an
        entry older than what its place holds.
        """
        # No metric of the probes has exemplars.
        if isinstance(entry, ProbeSample) or len(trace_id) + len(span_id) + _NAMES > _MAX_CHARACTERS:
            return
        updates: Iterable[Update]
        if isinstance(entry, TransferSample):
            time, updates = entry.end_time_unix_nano, transfer_updates(entry)
        else:
            time, updates = entry.time_unix_nano, event_updates(entry.WhichOneof("body") or "", entry)
        for metric, labels, value in updates:
            if metric.exemplars:
                place = _Place(source.key, metric, labels, bisect_left(metric.buckets, value))
                self._put(place, Exemplar(trace_id, span_id, value, time))

    def _put(self, place: _Place, exemplar: Exemplar) -> None:
        with self._lock:
            held = self._places.get(place)
            if held is not None and held.time_unix_nano > exemplar.time_unix_nano:
                return
            self._places[place] = exemplar
            self._places.move_to_end(place)
            if len(self._places) > self._capacity:
                self._places.popitem(last=False)

    def get(
        self, key: EngineKey, metric: Metric, labels: tuple[str, ...], bucket: int = 0
    ) -> Exemplar | None:
        """Return the exemplar of a series, or of a histogram's bucket by its index."""
        return self._places.get(_Place(key, metric, labels, bucket))
