"""Metrics: the catalogue, the fold over the log, the live gauges and the exposition."""

from penstock.agent.metrics.exemplars import Exemplars
from penstock.agent.metrics.exposition import Exposition
from penstock.agent.metrics.fold import Fold
from penstock.agent.metrics.own import AgentMetrics

__all__ = ["AgentMetrics", "Exemplars", "Exposition", "Fold"]
