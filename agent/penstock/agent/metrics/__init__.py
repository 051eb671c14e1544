"""Metrics: the catalogue, the fold over the log, the live gauges and the exposition."""

from penstock.agent.metrics.agent_metrics import AgentMetrics
from penstock.agent.metrics.aggregator import Fold
from penstock.agent.metrics.exemplars import Exemplars
from penstock.agent.metrics.gatherer import Exposition

__all__ = ["AgentMetrics", "Exemplars", "Exposition", "Fold"]
