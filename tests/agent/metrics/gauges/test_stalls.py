"""Gauges of stalls."""

from __future__ import annotations

from penstock.agent.metrics.catalogue import from_snapshots
from penstock.agent.metrics.gauges import GaugeSet, add_stalls
from penstock.agent.model import EngineKey
from penstock.agent.stalls import Stall, StallKind


def test_a_stall_has_a_count_and_a_start() -> None:
    """By kind and peer; an engine without one has no row."""
    sheet = GaugeSet()
    stalls = (
        Stall(StallKind.LOAD_NOT_STARTED, 2, 100.0, "", "p:1"),
        Stall(StallKind.THREAD_DEAD, 1, 50.0, ""),
    )
    add_stalls(sheet, {EngineKey("", "0"): stalls, EngineKey("", "1"): ()})
    rows = {family.metric: [(s.labels, s.value) for s in family.samples] for family in sheet.families()}
    assert rows == {
        from_snapshots.STALLS: [(("0", "", "load_not_started", "p:1"), 2), (("0", "", "thread_dead", ""), 1)],
        from_snapshots.STALL_START: [
            (("0", "", "load_not_started", "p:1"), 100.0),
            (("0", "", "thread_dead", ""), 50.0),
        ],
    }
