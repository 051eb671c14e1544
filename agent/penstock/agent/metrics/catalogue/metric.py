"""A metric of the catalogue: its name, kind, labels and scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.proto.names import NANOS

ENGINE_LABELS: Final = ("engine", "server")
"""What every metric of an engine carries before its own labels."""

OTHER: Final = "__other__"
"""What stands for the values of a label beyond the cap."""

PEER: Final = frozenset({"peer"})
"""The label ``peer`` as the only free one."""

_MICRO = NANOS // 10**6


def seconds(*bounds: float) -> tuple[int, ...]:
    """Return the bounds of a histogram in nanoseconds, each a whole number of microseconds."""
    return tuple(round(bound * 10**6) * _MICRO for bound in bounds)


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
