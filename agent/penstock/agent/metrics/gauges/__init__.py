"""Gauges of one scrape, from the snapshots of connected sources and the newest of the log."""

from __future__ import annotations

from penstock.agent.metrics.gauges.label_sets import GaugeSet
from penstock.agent.metrics.gauges.snapshots import Wanted, add_snapshots, by_engine
from penstock.agent.metrics.gauges.speeds import add_speeds
from penstock.agent.metrics.gauges.stalls import add_stalls

__all__ = ["GaugeSet", "Wanted", "add_snapshots", "add_speeds", "add_stalls", "by_engine"]
