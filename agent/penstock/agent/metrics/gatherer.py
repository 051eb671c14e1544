"""Gathers the log's counters with their exemplars, the live gauges and the agent's own metrics into one exposition."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog
from penstock.agent.batch import ProbeSample, TransferSample
from penstock.agent.metrics.catalogue import METRICS, MetricKind, from_agent, from_snapshots
from penstock.agent.metrics.exposition import (
    Distribution,
    ExemplarPoint,
    Family,
    Sample,
    join,
    negotiate,
    write,
    write_registry,
)
from penstock.agent.metrics.gauges import GaugeSet, add_snapshots, add_speeds, add_stalls, by_engine
from penstock.agent.metrics.series import event_updates, transfer_updates
from penstock.proto.names import ENGINE_CORE, NANOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.agent.metrics.agent_metrics import AgentMetrics
    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.metrics.gauges import Wanted
    from penstock.agent.metrics.series import Row, Update
    from penstock.agent.model import EngineKey, Source
    from penstock.agent.sources import LiveSource
    from penstock.agent.stalls import Stall
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


_T = TypeVar("_T")
_ORDER = {metric: index for index, metric in enumerate(METRICS)}

log = structlog.get_logger(__name__)


class Gatherer:
    """Renders the metrics. Thread-safe, so that a long scrape can run beside the event loop.

    Args:
        sources: returns the registry's sources, disconnected ones included.
        wanted: hash of the policy that an engine should have; None where that is not known yet.
        pause_ends: when the pause of an engine ends by itself, unix nanoseconds; 0 without a pause or without an end.
        stalls: what should go on in each engine and does not.
        look_seconds: between two looks of an engine's workers at their transfers, where that is known.
        clock: unix nanoseconds.

    """

    def __init__(
        self,
        aggregator: Aggregator,
        sources: Callable[[], Sequence[LiveSource]],
        exemplars: Exemplars,
        agent: AgentMetrics,
        *,
        wanted: Wanted | None = None,
        pause_ends: Callable[[EngineKey], int] = lambda _: 0,
        stalls: Callable[[], Mapping[EngineKey, Sequence[Stall]]] = dict,
        look_seconds: Callable[[], Mapping[EngineKey, float]] = dict,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._aggregator = aggregator
        self._sources = sources
        self._exemplars = exemplars
        self._agent = agent
        self._wanted = wanted
        self._pause_ends = pause_ends
        self._stalls = stalls
        self._look_seconds = look_seconds
        self._clock = clock

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type for an Accept header. A part that fails is left out."""
        content_type = negotiate(accept)
        success = Family(from_agent.COLLECTOR_SUCCESS)
        nothing: list[Family] = []
        families = [
            *self._collect("log", self._log, nothing, success),
            *self._collect("snapshots", self._snapshots, nothing, success),
        ]
        own = self._collect("agent", lambda: write_registry(self._agent.registry, content_type), b"", success)
        families = [family for family in (*families, success) if family.samples or family.distributions]
        families.sort(key=lambda family: _ORDER[family.metric])
        return join(write(families, content_type), own, content_type=content_type), content_type

    def _collect(self, name: str, collect: Callable[[], _T], nothing: _T, success: Family) -> _T:
        """Return a part of the exposition, or *nothing* if it fails; add the result to *success*."""
        try:
            part = collect()
        except Exception:
            log.exception("a collector failed; its metrics are missing from this scrape", collector=name)
            part, worked = nothing, False
        else:
            worked = True
        success.samples.append(Sample((name,), worked))
        return part

    def _log(self) -> list[Family]:
        """Return the counters of all engines that are not forgotten."""
        families: dict[Metric, Family] = {}
        for engine in self._aggregator.engines():
            for metric, rows in engine.rows.items():
                family = families.setdefault(metric, Family(metric))
                if metric.kind is MetricKind.HISTOGRAM:
                    family.distributions += self._distributions(engine.key, metric, rows)
                else:
                    family.samples += self._counters(engine.key, metric, rows)
        return list(families.values())

    def _counters(self, key: EngineKey, metric: Metric, rows: list[Row]) -> list[Sample]:
        prefix = (key.engine, key.server)
        samples = []
        for labels, total, *_ in sorted(rows):
            exemplar = self._exemplars.get(key, metric, labels) if metric.exemplars else None
            mark = _mark(exemplar, metric) if exemplar else None
            value = total if metric.scale == 1 else total / metric.scale
            samples.append(Sample((*prefix, *labels), value, mark))
        return samples

    def _distributions(self, key: EngineKey, metric: Metric, rows: list[Row]) -> list[Distribution]:
        distributions = []
        for labels, total, counts, _ in sorted(rows):
            marks = {}
            if metric.exemplars:
                for bucket in range(len(counts)):
                    exemplar = self._exemplars.get(key, metric, labels, bucket)
                    if exemplar:
                        marks[bucket] = _mark(exemplar, metric)
            distributions.append(
                Distribution((key.engine, key.server, *labels), total / metric.scale, counts, marks)
            )
        return distributions

    def _snapshots(self) -> list[Family]:
        """Return the gauges of connected engines, and which engines those are."""
        sources = self._sources()
        sheet = GaugeSet()
        add_snapshots(sheet, sources, self._wanted)
        self._add_speeds(sheet, sources)
        add_stalls(sheet, self._stalls())
        connected, stopped = self._connected(sources)
        for key, value in connected.items():
            sheet.set(from_snapshots.ENGINE_CONNECTED, key, value)
            if ends := self._pause_ends(key):
                sheet.set(from_snapshots.PAUSE_EXPIRY, key, ends / NANOS)
            sheet.set(from_snapshots.ENGINE_STOPPED, key, key in stopped)
        families = sheet.families()
        hidden = [Sample((metric.name,), count) for metric, count in sheet.hidden.items()]
        expected = max(0, (self._agent.engines_expected or len(connected)) - len(stopped))
        return [
            *families,
            Family(from_agent.LABEL_SETS_HIDDEN, sorted(hidden)),
            Family(from_agent.ENGINES_EXPECTED, [Sample((), expected)]),
            Family(from_agent.ENGINES_CONNECTED, [Sample((), sum(connected.values()))]),
        ]

    def _add_speeds(self, sheet: GaugeSet, sources: Sequence[LiveSource]) -> None:
        """Put how fast the transfers of connected engines are, by the clock of each."""
        looks = self._look_seconds()
        for key, lives in by_engine(live for live in sources if live.connected).items():
            ahead = next((live.clock_offset_nano for live in lives if live.clock_offset_nano is not None), 0)
            now = self._clock() + ahead
            add_speeds(sheet, key, self._aggregator.pair_speeds(key, now, looks.get(key, 0.0)))

    def _connected(self, sources: Sequence[LiveSource]) -> tuple[Mapping[EngineKey, bool], set[EngineKey]]:
        """Return all engines that are not forgotten with whether they are connected, and those that said goodbye.

        Both as `EngineView` has it: the EngineCore tells, of several the connected one, then the one seen last.
        """
        connected = {key: False for key in self._aggregator.known() if key.engine}
        stopped = set()
        for key, lives in by_engine(sources).items():
            if key.engine:
                cores = [live for live in lives if live.source.process == ENGINE_CORE]
                core = max(cores or lives, key=lambda live: (live.connected, live.last_seen_unix_nano))
                connected[key] = core.connected
                if core.said_goodbye and not core.connected:
                    stopped.add(key)
        return connected, stopped


def _mark(exemplar: Exemplar, metric: Metric) -> ExemplarPoint:
    return ExemplarPoint(
        exemplar.trace_id, exemplar.span_id, exemplar.value / metric.scale, exemplar.time_unix_nano / NANOS
    )
