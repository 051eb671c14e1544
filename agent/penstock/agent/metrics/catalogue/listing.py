"""Every metric that Penstock exposes, in the order of the exposition."""

from __future__ import annotations

from typing import Final

from penstock.agent.metrics.catalogue import from_agent, from_log, from_snapshots
from penstock.agent.metrics.catalogue.metric import Metric

METRICS: Final[tuple[Metric, ...]] = tuple(
    value
    for part in (from_log, from_snapshots, from_agent)
    for value in vars(part).values()
    if isinstance(value, Metric)
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
