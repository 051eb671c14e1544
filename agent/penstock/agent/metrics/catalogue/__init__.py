"""Every metric by what feeds it: the only place of a name. No label holds a rank, a request or (but in ``_info``) a UUID."""

from __future__ import annotations

from penstock.agent.metrics.catalogue import from_agent, from_log, from_snapshots
from penstock.agent.metrics.catalogue.listing import BY_NAME, METRICS
from penstock.agent.metrics.catalogue.metric import OTHER, Metric, MetricKind

__all__ = ["BY_NAME", "METRICS", "OTHER", "Metric", "MetricKind", "from_agent", "from_log", "from_snapshots"]
