"""Gauges of one scrape, from the snapshots of connected sources."""

from __future__ import annotations

from penstock.agent.metrics.gauges.label_sets import GaugeSet
from penstock.agent.metrics.gauges.snapshots import Wanted, add_snapshots, by_engine

__all__ = ["GaugeSet", "Wanted", "add_snapshots", "by_engine"]
