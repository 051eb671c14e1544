"""The reference for our text formats: the same families through prometheus_client's own writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.metrics.exposition.text_formats import ExemplarPoint, Family


def _exemplar(mark: ExemplarPoint | None) -> Exemplar | None:
    if mark is None:
        return None
    return Exemplar({"trace_id": mark.trace_id, "span_id": mark.span_id}, mark.value, mark.time_seconds)


def as_metric(family: Family) -> Metric:
    """Convert one of our families."""
    spec = family.metric
    metric = Metric(spec.family, spec.help, spec.kind.value)
    for labels, value, mark in family.samples:
        metric.add_sample(
            spec.name, dict(zip(spec.all_labels, labels, strict=True)), value, exemplar=_exemplar(mark)
        )
    for labels, total, counts, marks in family.distributions:
        named = dict(zip(spec.all_labels, labels, strict=True))
        bounds = [*(floatToGoString(bound / spec.scale) for bound in spec.buckets), "+Inf"]
        for index, bound in enumerate(bounds):
            metric.add_sample(
                f"{spec.name}_bucket",
                {**named, "le": bound},
                sum(counts[: index + 1]),
                exemplar=_exemplar(marks.get(index)),
            )
        metric.add_sample(f"{spec.name}_count", named, sum(counts))
        metric.add_sample(f"{spec.name}_sum", named, total)
    return metric


class _Collector:
    def __init__(self, families: Iterable[Family]) -> None:
        self._metrics = [as_metric(family) for family in families]

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def reference(families: Iterable[Family], *, in_openmetrics: bool) -> bytes:
    """Write *families* with prometheus_client."""
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return openmetrics.generate_latest(registry) if in_openmetrics else generate_latest(registry)
