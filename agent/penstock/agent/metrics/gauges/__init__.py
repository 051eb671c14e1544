"""Gauges of one scrape, from the snapshots of connected sources and the newest of the log."""

from __future__ import annotations

from penstock.agent.metrics.gauges.engine import GaugeSet, add_speeds, add_stalls
from penstock.agent.metrics.gauges.snapshots import Wanted, add_snapshots, by_engine

__all__ = ["GaugeSet", "Wanted", "add_snapshots", "add_speeds", "add_stalls", "by_engine"]
