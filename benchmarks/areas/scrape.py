"""The cost of a scrape, against plain ``prometheus_client`` with the same series: ``make bench ONLY=scrape``.

Both render in this process, without the network. The peer's registry is made from our own answer: the same metrics, labels, buckets.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.aggregator import Aggregator
from penstock.agent.metrics.gatherer import Exemplars, Gatherer
from penstock.agent.sources.registry import Registry
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.interleave import take_turns
from benchmarks.harness.results import Budget, Section, against
from benchmarks.load.label_sets import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.metrics_core import Metric

    from benchmarks.harness.interleave import Run

AREA: Final = "scrape"
TITLE: Final = "A scrape"
MEANING: Final = (
    "A scrape is folded from the journal's counters; the peer is prometheus_client with the same series."
)
_NOTES: Final = (
    "Rendering of so many series (lines of the text format, most of them buckets of histograms) by the agent, and by `prometheus_client` from a registry that holds the same. CPU time of the thread.",
)
_SERIES: Final = (100, 1_000, 10_000)
_QUICK_SERIES: Final = (1_000, 10_000)
_ROUNDS, _QUICK_ROUNDS = 60, 15
_BUDGET: Final = Budget("scrape with 10,000 series", 50)
_PEER: Final = "prometheus_client generate_latest"
_MS: Final = 1e3


def measure(run: Run) -> Section:
    """Measure the area."""
    rows = []
    for series in _QUICK_SERIES if run.quick else _SERIES:
        exposition = _exposition(series)
        registry = _same(exposition.render("text/plain")[0].decode())
        run.say(f"{series:,} series")
        found = take_turns(
            {
                "ours": partial(_timed, partial(exposition.render, "text/plain")),
                "theirs": partial(_timed, partial(generate_latest, registry)),
            },
            _QUICK_ROUNDS if run.quick else _ROUNDS,
        )
        budget = _BUDGET if series == max(_SERIES) else None
        rows.append(against(f"{series:,} series", "ms", found["ours"], _PEER, found["theirs"], budget=budget))
    return Section(AREA, TITLE, _NOTES, rows)


def _timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * _MS


def _exposition(series: int) -> Gatherer:
    """Return a renderer of about *series* lines."""
    lines_of_a_label_set = 6.4
    aggregator = Aggregator()
    fill(aggregator, int(series / lines_of_a_label_set))
    return Gatherer(aggregator, Registry(time.time_ns).sources, Exemplars(), AgentMetrics(0))


def _same(text: str) -> CollectorRegistry:
    """Return a registry of the same series."""
    # We have none either.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(text):
        _copy(family, registry)
    return registry


def _copy(family: Metric, registry: CollectorRegistry) -> None:
    samples = [each for each in family.samples if not each.name.endswith("_created")]
    if not samples:
        return
    label_sets = {_labels(each.labels) for each in samples}
    names = [name for name, _ in next(iter(label_sets))]
    if family.type == "histogram":
        bounds = sorted({float(each.labels["le"]) for each in samples if "le" in each.labels})
        made: Any = Histogram(family.name, family.documentation, names, registry=registry, buckets=bounds)
    else:
        kind = Counter if family.type == "counter" else Gauge
        made = kind(family.name, family.documentation, names, registry=registry)
    for labels in label_sets:
        child = made.labels(*(value for _, value in labels)) if labels else made
        child.observe(0.01) if family.type == "histogram" else child.inc(12_345)


def _labels(labels: dict[str, str]) -> Iterable[tuple[str, str]]:
    return tuple((name, value) for name, value in labels.items() if name != "le")
