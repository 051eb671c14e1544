"""The families of samples that an exposition is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.agent.metrics.catalogue import Metric


class ExemplarPoint(NamedTuple):
    """An exemplar in base units; ``labels`` are its trace_id and span_id."""

    trace_id: str
    span_id: str
    value: float
    time_seconds: float


class Sample(NamedTuple):
    """One series of a counter, gauge or info.

    Attributes:
        labels: values of `Metric.all_labels`, in their order.

    """

    labels: tuple[str, ...]
    value: float
    mark: ExemplarPoint | None = None


class Distribution(NamedTuple):
    """One series of a histogram.

    Attributes:
        labels: values of `Metric.all_labels`, in their order.
        counts: by bucket, not cumulative, infinity last.
        marks: exemplars by bucket index.

    """

    labels: tuple[str, ...]
    total: float
    counts: tuple[int, ...]
    marks: dict[int, ExemplarPoint]


@dataclass(slots=True)
class Family:
    """One metric with its series: samples, or distributions if it is a histogram."""

    metric: Metric
    samples: list[Sample] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
