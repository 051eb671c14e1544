"""prometheus_client collectors of the agent: what is read at the scrape, by the catalogue's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.metrics import catalogue as c
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as CoreMetric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.agent.metrics.model import Family
    from prometheus_client import CollectorRegistry

# prometheus_client's families and what the catalogue calls them; a family that the platform lacks is absent.
_PROCESS = {
    "process_start_time_seconds": c.AGENT_START,
    "process_cpu_seconds": c.AGENT_CPU,
    "process_resident_memory_bytes": c.AGENT_MEMORY,
    "process_open_fds": c.AGENT_FDS,
}


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


class AgentProcessCollector(Collector):
    """Collects what *process* does, by the catalogue's names as well."""

    def __init__(self, process: Collector) -> None:
        self._process = process

    def collect(self) -> Iterator[CoreMetric]:
        """Return both names of each."""
        for standard in self._process.collect():
            yield standard
            if metric := _PROCESS.get(standard.name):
                core = CoreMetric(metric.family, metric.help, metric.kind.value)
                for sample in standard.samples:
                    core.add_sample(metric.name, sample.labels, sample.value)
                yield core


def register_runtime(registry: CollectorRegistry) -> None:
    """Register the collectors of the process, the garbage collector and the interpreter."""
    registry.register(AgentProcessCollector(ProcessCollector(registry=None)))
    GCCollector(registry)
    PlatformCollector(registry)
