"""Gauges of one scrape: one value a label set, under a cap."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from penstock.agent.metrics.exposition import Family, Sample
from penstock.agent.metrics.series import CAP

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.metrics.catalogue import Metric
    from penstock.agent.model import EngineKey

    Merge = Callable[[float, float], float]
    Values = dict[tuple[str, ...], float]

MIN: Final[Merge] = min
MAX: Final[Merge] = max


def add(left: float, right: float) -> float:
    """Return the sum."""
    return left + right


class GaugeSet:
    """The gauges of one scrape.

    A metric of an engine shows at most *cap* label sets, the first in order. The rest is merged into
    ``__other__`` where the metric's values can be merged, and left out where they cannot.

    Attributes:
        hidden: label sets beyond the cap, by metric.

    """

    def __init__(self, cap: int = CAP) -> None:
        self.hidden: defaultdict[Metric, int] = defaultdict(int)
        self._cap = cap
        self._values: defaultdict[Metric, defaultdict[EngineKey, Values]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._merges: dict[Metric, Merge] = {}

    def set(self, metric: Metric, key: EngineKey, value: float, *labels: str) -> None:
        """Set the value of a label set; the last one stays."""
        self._values[metric][key][labels] = value

    def merge(self, how: Merge, metric: Metric, key: EngineKey, value: float, *labels: str) -> None:
        """Merge *value* into that of its label set."""
        self._merges[metric] = how
        values = self._values[metric][key]
        values[labels] = how(values[labels], value) if labels in values else value

    def families(self) -> list[Family]:
        """Return the metrics that have a value."""
        families = []
        for metric, engines in self._values.items():
            family = Family(metric)
            for key, values in sorted(engines.items()):
                for labels, value in sorted(self._capped(metric, values).items()):
                    family.samples.append(Sample((key.engine, key.server, *labels), value))
            families.append(family)
        return families

    def _capped(self, metric: Metric, values: Values) -> Values:
        beyond = len(values) - self._cap
        if beyond <= 0:
            return values
        self.hidden[metric] += beyond
        ordered = sorted(values.items())
        kept = dict(ordered[: self._cap])
        how = self._merges.get(metric)
        if how is not None:
            for labels, value in ordered[self._cap :]:
                other = metric.folded(labels)
                kept[other] = how(kept[other], value) if other in kept else value
        return kept
