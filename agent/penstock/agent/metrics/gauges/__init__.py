"""Gauges of one scrape, from the snapshots of connected sources and the newest of the log."""

from __future__ import annotations

from penstock.agent.metrics.gauges.label_sets import GaugeSet
from penstock.agent.metrics.gauges.snapshots import Wanted, add_snapshots, by_engine
from penstock.agent.metrics.gauges.speeds import add_speeds

__all__ = ["GaugeSet", "Wanted", "add_snapshots", "add_speeds", "by_engine"]
