"""prometheus_client collectors of the agent: what is read at the scrape, by the catalogue's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as CoreMetric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.agent.metrics.exposition import Family
    from prometheus_client import CollectorRegistry


def core_metric(family: Family) -> CoreMetric:
    """Return counters or gauges of the catalogue as prometheus_client's type."""
    metric = family.metric
    core = CoreMetric(metric.family, metric.help, metric.kind.value)
    for labels, value, _ in family.samples:
        core.add_sample(metric.name, dict(zip(metric.all_labels, labels, strict=True)), value)
    return core


class FamilyCollector(Collector):
    """Collects the families that *families* returns at each scrape; those without samples are left out."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterator[CoreMetric]:
        """Return them as they are now."""
        return (core_metric(family) for family in self._families() if family.samples)


def register_runtime(registry: CollectorRegistry) -> None:
    """Register prometheus_client's collectors: ``process_*``, ``python_gc_*`` and ``python_info``."""
    ProcessCollector(registry=registry)
    GCCollector(registry)
    PlatformCollector(registry)
