"""A metric of the catalogue, and the families of samples that an exposition is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

ENGINE_LABELS: Final = ("engine", "server")
"""What every metric of an engine carries before its own labels."""

OTHER: Final = "__other__"
"""What stands for the values of a label beyond the cap."""


class MetricKind(Enum):
    """The types of OpenMetrics that we use; an ``info`` is a gauge in text format 0.0.4."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric of the catalogue.

    State is kept in whole numbers, so that it does not depend on the order of
    additions: ``scale`` state units make one base unit of the name.

    Attributes:
        name: as people query it, with ``_total`` or ``_info``; a histogram's without a suffix.
        labels: its own, without ``engine`` and ``server``.
        free: those of ``labels`` whose values are text from outside, so not bounded by an enum.
        per_engine: it carries ``engine`` and ``server``.
        buckets: upper bounds in state units, ascending, without infinity.
        exemplars: its series may carry one in OpenMetrics.

    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    free: frozenset[str] = frozenset()
    per_engine: bool = True
    buckets: tuple[int, ...] = ()
    scale: int = 1
    exemplars: bool = False
    all_labels: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "all_labels", (*ENGINE_LABELS, *self.labels) if self.per_engine else self.labels
        )

    @property
    def family(self) -> str:
        """The name without the suffix that OpenMetrics adds to its samples."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        if self.kind is MetricKind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum")
        return (self.name,)

    def folded(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return *labels* with ``__other__`` for free text; words of an enum stay."""
        return tuple(
            OTHER if name in self.free else value for name, value in zip(self.labels, labels, strict=True)
        )


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
